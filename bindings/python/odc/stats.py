# SPDX-License-Identifier: Apache-2.0
"""Where the time went, as the C library counts it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Totals since the context joined. Bytes; times in nanoseconds."""

    gather_calls: int
    gather_bytes: int
    scatter_add_calls: int
    scatter_add_bytes: int
    syncs: int
    publish_wait_ns: int
    sync_wait_ns: int
    lock_wait_ns: int
    slice_bytes: int


@dataclass(frozen=True)
class PeerStats:
    """What one rank cost this one, in nanoseconds, and in how many syncs it was the last of all."""

    publish_wait_ns: int
    sync_late_ns: int
    sync_last: int
