# SPDX-License-Identifier: Apache-2.0
"""How one rank reaches another."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """The transport ("cuda", "shm", "fabric"; "" where there is no route), why it was chosen, and `why_not` the others.

    Between hosts also libfabric's provider and the NICs at both ends, else "". `access`: how gathers read, "direct" or
    "staged" in the library's buffers, or "none".
    """

    transport: str
    provider: str
    nic: str
    peer_nic: str
    why: str
    why_not: str
    access: str

    @property
    def between_hosts(self) -> bool:
        """Whether the rank is on another host."""
        return bool(self.nic)

    def __str__(self) -> str:
        return f"{self.transport or 'none'}: {self.why}" + (f"; not {self.why_not}" if self.why_not else "")
