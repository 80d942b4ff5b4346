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
idle share of each rank in one schedule so far:

    step 12/68  1:42 left  loss 3.7355  idle 12 % 3 % (odc + lb-micro)

At the end it prints two tables and a verdict (here of two ranks), and writes --report: index.html with pictures, and
summary.json.

    arm                    tokens/s  speedup   idle     time    ideal  reached  last loss     held-out loss
    fsdp2 + lb-micro           7041    1.00x  18.7%  17.84 s  14.60 s    81.8%   3.510980  5.6062 -> 3.3967
    collective + lb-micro      7809    1.11x  14.9%  16.09 s  14.45 s    89.8%   3.510980  5.6062 -> 3.3967
    odc + lb-micro             9086    1.29x   2.1%  13.83 s  12.31 s    89.1%   3.510980  5.6062 -> 3.3967
    odc + lb-mini              8977    1.27x   4.5%  13.99 s  12.32 s    88.0%   3.510979  5.6062 -> 3.3967

    gain of (median of 8 pairs)                                  gain          spread
    transport: collective + lb-micro over fsdp2 + lb-micro     1.117x  1.014 to 1.151
    schedule: odc + lb-micro over collective + lb-micro        1.144x  1.079 to 1.262
    transport, schedule: odc + lb-micro over fsdp2 + lb-micro  1.281x  1.234 to 1.424
    plan: odc + lb-mini over odc + lb-micro                    0.983x  0.934 to 1.036
    all: odc + lb-mini over fsdp2 + lb-micro                   1.269x  1.226 to 1.369

    verdict: odc + lb-mini over fsdp2 + lb-micro: 1.27x (1.23x to 1.37x in 8 pairs)
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from options import parse_options


def main() -> int:
    options = parse_options(sys.argv[1:], __doc__ or "")
    if find_spec("matplotlib") is None:  # before the run, not after it
        sys.exit("train.py: the report's pictures need Matplotlib: pip install matplotlib")
    import job  # imports torch, which takes seconds: not for --help

    return job.run(options)


if __name__ == "__main__":
    sys.exit(main())
