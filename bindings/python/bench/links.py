# SPDX-License-Identifier: Apache-2.0
"""The link between the hosts that fsdp2_hosts.sh makes."""

import os

RATE = os.environ.get("ODC_BENCH_RATE", "1gbit")  # as tc writes it
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def received() -> int:
    """Bytes into this host so far, as its interface counts."""
    with open("/sys/class/net/net0/statistics/rx_bytes", encoding="ascii") as file:
        return int(file.read())


def network_seconds(moved: float) -> float:
    """What the link takes for so many bytes in one direction."""
    return moved * 8 / (float(RATE[:-4]) * _UNITS[RATE[-4:]])


def hidden(seconds: float, compute: float, moved: float) -> float:
    """The share of the network's time that does not add to the seconds of compute alone. All that FSDP2 and the library
    do besides moving counts as network, too."""
    return 1 - max(seconds - compute, 0) / network_seconds(moved)
