# SPDX-License-Identifier: Apache-2.0
"""How much of the network's time the training example hides: the number of timed minibatches, and
two summary.json of it, of a fast link and of a slow one. example_nodes.sh makes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from links import RATE, hidden


def main() -> None:
    minibatches = int(sys.argv[1])
    fast, slow = (json.loads(Path(name).read_text()) for name in sys.argv[2:])
    print(f"\n{'s a minibatch':30}{'fast link':>10}{RATE:>10}  tokens/s  MB into a host  hidden")
    for one, other in zip(fast["arms"], slow["arms"], strict=True):
        assert one["name"] == other["name"]
        times = [arm["seconds"] / minibatches for arm in (one, other)]
        moved = other["bytes_into_a_host"]
        print(
            f"{one['name']:30}{times[0]:10.2f}{times[1]:10.2f}{other['tokens_per_second']:10.0f}{moved / 1e6:16.1f}"
            f"{hidden(times[1], times[0], moved):8.2f}"
        )


main()
