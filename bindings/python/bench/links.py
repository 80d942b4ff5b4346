# SPDX-License-Identifier: Apache-2.0
"""The link between the hosts that fsdp2_hosts.sh makes, and how much of its time is hidden."""

import os
import subprocess

RATE = os.environ.get("ODC_BENCH_RATE", "1gbit")  # as tc writes it
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def slow_down() -> None:
    """What this host sends, to RATE."""
    subprocess.run([os.environ["HOSTS"], "rate", RATE], check=True)


def let_run() -> None:
    """What this host sends, as fast as the machine does."""
    subprocess.run(["tc", "qdisc", "replace", "dev", "net0", "root", "pfifo"], check=True)


def network_seconds(moved: float) -> float:
    """What the slowed link takes for so many bytes in one direction."""
    return moved * 8 / (float(RATE[:-4]) * _UNITS[RATE[-4:]])


def hidden(seconds: float, without: float, moved: float) -> float:
    """The share of the network's time that `seconds` over the slowed link do not have beside those `without` it."""
    return 1 - max(seconds - without, 0) / network_seconds(moved)
