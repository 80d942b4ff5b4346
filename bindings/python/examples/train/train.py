# SPDX-License-Identifier: Apache-2.0
"""Trains a small decoder on real, long-tailed text with several schedules side by side: byte-level language-model
training in the shape of supervised fine-tuning.

    python train.py compute                  real compute on one rank
    odc run -n 2 python train.py compute     a rank a core: FSDP2 over gloo, over libodc, and ODC
    odc run -n 2 python train.py compute --device cuda    the same on GPUs, shared where there are fewer
    odc run -n 8 python train.py emulated    emulated devices: the collective schedule against ODC
    python train.py order                    what the order of samples does to the held-out loss
    odc run -n 3 python train.py exact       exact sums: the same bits with every plan and number of ranks

torchrun and mpirun start it, too. While it trains, rank 0 shows on stderr its step, the time left, the loss, and the
idle share of each rank in one schedule so far, from the end of that schedule's first turn on:

    step 12/85  1:42 left  loss 3.7355  idle 12 % 3 % (odc + lb-micro)

At the end it prints a verdict and two tables (here of two ranks), and writes --report: index.html with pictures, and
summary.json. Pairs of turns during which other programs used more than 20 % of the processors are repeated, at most
half of them. If that does not help, the verdict is "not resolved", and the tables have no gains.

    verdict: odc + lb-mini over fsdp2 + lb-micro: 1.15 to 1.44x, median 1.27x of 8 pairs

    arm                       tokens/s  speedup   idle     time    ideal  reached  last loss     held-out loss
    fsdp2 + lb-micro              4943    1.00x  18.9%  25.41 s  22.25 s    87.5%   3.510980  5.6062 -> 3.3967
    collective + lb-micro         5184    1.05x  16.1%  24.23 s  22.60 s    93.3%   3.510980  5.6062 -> 3.3967
    collective + sorted-rows      5623    1.14x   9.9%  22.34 s  20.77 s    93.0%   3.510979  5.6062 -> 3.3967
    odc + lb-micro                6207    1.26x   3.3%  20.24 s  18.86 s    93.2%   3.510980  5.6062 -> 3.3967
    odc + lb-mini                 6298    1.27x   2.2%  19.95 s  18.69 s    93.7%   3.510980  5.6062 -> 3.3967

    gain of (median of 8 pairs)                                                 gain          spread
    transport: collective + lb-micro over fsdp2 + lb-micro                    1.081x  0.924 to 1.107
    plan of collectives: collective + sorted-rows over collective + lb-micro  1.073x  1.019 to 1.230
    schedule: odc + lb-micro over collective + lb-micro                       1.163x  1.106 to 1.370
    transport, schedule: odc + lb-micro over fsdp2 + lb-micro                 1.254x  1.146 to 1.360
    plan: odc + lb-mini over odc + lb-micro                                   0.995x  0.951 to 1.119
    schedule, plan: odc + lb-mini over collective + sorted-rows               1.087x  1.008 to 1.275
    all: odc + lb-mini over fsdp2 + lb-micro                                  1.274x  1.149 to 1.444
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from leaving import leave
from options import parse_options, speaks


def main() -> None:
    options = parse_options(sys.argv[1:], __doc__ or "")
    if find_spec("matplotlib") is None:  # before the run, not after it
        sys.exit("train.py: the report's pictures need Matplotlib: pip install matplotlib" if speaks() else 1)
    import job
    import training  # imports torch, which takes seconds: not for --help

    leave(job.run("train.py", lambda context: training.train(options, context)))


if __name__ == "__main__":
    main()
