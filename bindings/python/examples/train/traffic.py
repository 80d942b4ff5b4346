# SPDX-License-Identifier: Apache-2.0
"""Bytes that come into this rank's host."""

from __future__ import annotations

from pathlib import Path

import libodc

_INTERFACES = Path("/sys/class/net")


def received() -> int:
    """So far, as the interfaces count, but loopback."""
    counts = [one / "statistics/rx_bytes" for one in _INTERFACES.iterdir() if one.name != "lo"]
    return sum(int(count.read_text()) for count in counts if count.exists())


def hosts_of(context: libodc.Context) -> int:
    """Collective. How many hosts the ranks are on."""
    here = sum(not context.route(rank).between_hosts for rank in range(context.size))
    (hosts,) = context.all_reduce([1 / max(1, here)])
    return round(hosts)


def crossed(context: libodc.Context) -> int:
    """What this rank has read of other hosts, and sent to them, so far, as libodc counts."""
    stats = context.stats()
    return stats.fetched_bytes + stats.sent_bytes
