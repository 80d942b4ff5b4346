# SPDX-License-Identifier: Apache-2.0
"""Trains a small decoder on real, long-tailed text with several schedules side by side: byte-level language-model
training in the shape of supervised fine-tuning.

    odc run -n 2 python train.py compute     real compute, a rank a core: FSDP2 over gloo, over libodc, and ODC
    odc run -n 2 python train.py compute --device cuda    the same on GPUs, shared where there are fewer
    odc run -n 8 python train.py emulated    emulated devices: the collective schedule against ODC

torchrun and mpirun start it, too.
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
