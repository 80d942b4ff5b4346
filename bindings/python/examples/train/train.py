# SPDX-License-Identifier: Apache-2.0
"""Trains a small decoder on real, long-tailed text with several schedules side by side: byte-level language-model
training in the shape of supervised fine-tuning.

    python train.py compute                  real compute on one rank
    odc run -n 2 python train.py compute     a rank a core: FSDP2 over gloo, over libodc, and ODC
    odc run -n 2 python train.py compute --device cuda    the same on GPUs, shared where there are fewer
    odc run -n 8 python train.py emulated    emulated devices: the collective schedule against ODC

torchrun and mpirun start it, too. While it trains, rank 0 shows on stderr its step, the time left, the loss, and the
idle share of each rank in one schedule so far:

    step 12/68  1:42 left  loss 3.7355  idle 12 % 3 % (odc + lb-micro)

At the end it prints two tables and a verdict (here of two ranks on a busy machine), and writes --report:
index.html with pictures, and summary.json.

    arm                    tokens/s  speedup   idle     time   ideal  reached  last loss     held-out loss
    fsdp2 + lb-micro           2936    1.00x  55.8%  14.10 s  5.18 s    36.7%   3.735451  5.6086 -> 3.6259
    collective + lb-micro      3079    1.05x  56.8%  13.45 s  5.22 s    38.8%   3.735451  5.6086 -> 3.6259
    odc + lb-micro             2914    0.99x  59.2%  14.21 s  4.68 s    32.9%   3.735451  5.6086 -> 3.6259
    odc + lb-mini              3421    1.17x  54.0%  12.10 s  4.64 s    38.4%   3.735451  5.6086 -> 3.6259

    gain of (median of 5 pairs)                                  gain          spread
    transport: collective + lb-micro over fsdp2 + lb-micro     1.031x  0.849 to 1.523
    schedule: odc + lb-micro over collective + lb-micro        1.047x  0.781 to 1.101
    transport, schedule: odc + lb-micro over fsdp2 + lb-micro  1.079x  0.663 to 1.677
    plan: odc + lb-mini over odc + lb-micro                    1.078x  0.947 to 1.504
    all: odc + lb-mini over fsdp2 + lb-micro                   1.163x  0.997 to 1.639

    verdict: not resolved: other programs used 56% of the processors; measured beside them: odc + lb-mini over ...
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
