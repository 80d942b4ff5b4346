# SPDX-License-Identifier: Apache-2.0
"""Group-relative policy optimisation (GRPO) of a small decoder that learns to sort digits, in several arms side by
side.

    odc run -n 2 python grpo.py

In each rollout every rank answers some of the prompts, with parameters gathered once, and rewards are by checking.
Groups whose rewards are all equal are dropped. The log-probabilities of the policy and of the reference are forwards.
Then each answer moves to the rank that trains on it, in several minibatches, each with one divisor: its tokens on all
ranks. The arms:

    fsdp2-equal        FSDP2 over gloo; equally many passes on each rank, so some are over nothing
    fsdp2-packed       the same, several answers a pass: as many as have the tokens of the longest
    collective-packed, collective-equal  the same schedules over libodc's shared memory
    odc-equal          ODC, as many answers on each rank
    odc-free           ODC, answers by LB-Mini: as many as balance
    odc-packed         the same, several answers a pass (other bits)
    odc-ahead          ODC, all minibatches of a rollout planned together (other answers in each: other rewards)
    odc-claims         ODC, prompts and answers claimed by whoever is done first

With --emulate the blocks of the updates are padded by sleep to the time of a 7B model's, for more ranks than cores:

    odc run -n 8 python grpo.py --emulate 3 --rollouts 5
    odc run -n 8 python grpo.py --emulate 3 --rollouts 5 --noise 0.1  # devices of other speeds in each minibatch

It prints tables and a verdict, and writes --report: index.html with pictures, and summary.json. The ODC arms but
odc-packed and odc-ahead must have the same rewards and end with the same parameters, bit by bit, whatever the number of
ranks.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "train"))  # its decoder, process group and tables


def main() -> None:
    from leaving import leave
    from settings import parse_settings

    settings = parse_settings(sys.argv[1:], __doc__ or "")
    if find_spec("matplotlib") is None:  # before the run, not after it
        sys.exit("grpo.py: the report's pictures need Matplotlib: pip install matplotlib")
    import job
    import recipe  # imports torch, which takes seconds: not for --help

    leave(job.run("grpo.py", lambda context: recipe.run(settings, context)))


if __name__ == "__main__":
    main()
