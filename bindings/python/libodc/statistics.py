# SPDX-License-Identifier: Apache-2.0
"""Statistics, as counted by the C library."""

from collections.abc import Iterator
from dataclasses import dataclass

_MOST_PEERS = 16  # in a printed table


@dataclass(frozen=True)
class Stats:
    """Totals since the context joined, and the rank that arrived last in the last sync. Bytes; times in nanoseconds."""

    gather_calls: int
    gather_bytes: int
    scatter_add_calls: int
    scatter_add_bytes: int
    syncs: int
    publish_wait_ns: int
    sync_wait_ns: int
    lock_wait_ns: int
    slice_bytes: int
    packets_sent: int
    pinned_bytes: int
    clamped_addends: int
    sync_last_rank: int
    fetched_bytes: int
    served_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class PeerStats:
    """How long this rank waited for one rank, in nanoseconds, and in how many syncs that was the last one."""

    publish_wait_ns: int
    sync_late_ns: int
    sync_last: int


@dataclass(frozen=True)
class ContextStats:
    """One context's numbers. `peers[r]` is about rank r. Prints as a table."""

    group: str
    rank: int
    size: int
    minibatch: int
    totals: Stats
    peers: list[PeerStats]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        t = self.totals
        yield f'group "{self.group}": rank {self.rank} of {self.size}, in minibatch {self.minibatch}'
        for what, calls, moved, wait, ns in (
            ("gathers", t.gather_calls, t.gather_bytes, "publish", t.publish_wait_ns),
            ("additions", t.scatter_add_calls, t.scatter_add_bytes, "sync", t.sync_wait_ns),
        ):
            yield f"  {what:<10}{calls:>9} {_bytes(moved):>9}   waited for {wait:<8}{_seconds(ns):>11}"
        yield f"  {'syncs':<10}{t.syncs:>9} {'':>9}   waited for {'locks':<8}{_seconds(t.lock_wait_ns):>11}"
        yield f"  {'slices':<10}{'':>9} {_bytes(t.slice_bytes):>9}"
        if t.pinned_bytes > 0:
            yield f"  {'pinned':<10}{'':>9} {_bytes(t.pinned_bytes):>9}"
        if t.clamped_addends > 0:
            yield f"  {'clamped':<10}{t.clamped_addends:>9} elements of gradients were too large for exact sums"
        if t.fetched_bytes + t.served_bytes > 0:
            served = f"node cache served {_bytes(t.served_bytes):>9}"
            yield f"  {'fetched':<10}{'':>9} {_bytes(t.fetched_bytes):>9}   {served}"
        if t.sent_bytes > 0:
            yield f"  {'sent':<10}{'':>9} {_bytes(t.sent_bytes):>9}"
        if t.packets_sent > 0:
            yield f"  {'packets':<10}{t.packets_sent:>9}"
        yield f"  {'rank':<8}{'waited for':>12}{'late in sync':>15}{'last in sync':>15}"
        cost = [peer.publish_wait_ns + peer.sync_late_ns for peer in self.peers]
        costliest = sorted(range(len(cost)), key=lambda rank: -cost[rank])[:_MOST_PEERS]
        for rank in sorted(costliest):
            peer = self.peers[rank]
            name = f"{rank}{' (this)' if rank == self.rank else ''}"
            waits = f"{_seconds(peer.publish_wait_ns):>12}{_seconds(peer.sync_late_ns):>15}"
            yield f"  {name:<8}{waits}{peer.sync_last:>15}"
        if len(cost) > _MOST_PEERS:
            yield f"  and {len(cost) - _MOST_PEERS} ranks that cost less"


class Report(tuple[ContextStats, ...]):
    """The statistics of every open context, in the order of joining. Prints as tables."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(map(str, self)) or "no context is open"


def _bytes(count: int) -> str:
    scaled, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if scaled < 1000:
            break
        scaled, unit = scaled / 1000, larger
    return f"{count} B" if unit == "B" else f"{scaled:.3g} {unit}"


def _seconds(ns: int) -> str:
    return f"{ns * 1e-9:.3f} s"
