# SPDX-License-Identifier: Apache-2.0
"""Which groups were gathered in this minibatch, and which trainable parameters have had gradients: of all groups in one
array each, since there may be hundreds of groups, and a loop over them costs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class Participation:
    def __init__(self) -> None:
        self._gathered = bytearray()
        self._pending = bytearray()
        self._reduced = bytearray()
        self._backwards = array("L")
        self._some_never = False  # some groups have no trainable parameters

    def add_group(self, count: int) -> GroupParticipation:
        """Of the next `count` parameters."""
        begin = len(self._reduced)
        self._gathered += bytes(1)
        self._pending += bytes(count)
        self._reduced += bytes(count)
        self._backwards.extend([0] * count)
        self._some_never = self._some_never or count == 0
        return GroupParticipation(self, len(self._gathered) - 1, begin, begin + count)

    def each(self) -> list[bool]:
        """Whether its gradients were reduced."""
        return list(map(bool, self._reduced)) if 0 in self._reduced else [True] * len(self._reduced)

    def any(self) -> bool:
        """Whether there are gradients, reduced or not."""
        return 1 in self._reduced or self.any_pending()

    def any_pending(self) -> bool:
        return 1 in self._pending

    def is_complete(self) -> bool:
        """Whether all groups have reduced all gradients."""
        return not self._some_never and 0 not in self._reduced and not self.any_pending()

    def most_backwards(self) -> int:
        """Of a parameter."""
        return max(self._backwards, default=0)

    def has_gathered(self) -> bool:
        """Whether a group was."""
        return 1 in self._gathered

    def forget(self) -> None:
        for flags in (self._gathered, self._pending, self._reduced):
            flags[:] = bytes(len(flags))
        self._backwards[:] = array("L", bytes(self._backwards.itemsize * len(self._backwards)))


class GroupParticipation:
    """Of the group `number`, whose parameters are those from `begin` to `end`. Pending are those with gradients that
    are not reduced yet."""

    def __init__(self, whole: Participation, number: int, begin: int, end: int) -> None:
        self._gathered, self._number = whole._gathered, number
        self._pending, self._reduced, self._backwards = whole._pending, whole._reduced, whole._backwards
        self._begin, self._end = begin, end

    @property
    def gathered(self) -> bool:
        return self._gathered[self._number] == 1

    def note_gather(self) -> None:
        self._gathered[self._number] = 1

    def note_backward(self, index: int) -> None:
        """It has a gradient now."""
        self._pending[self._begin + index] = 1
        self._backwards[self._begin + index] += 1

    def is_pending(self, index: int) -> bool:
        return self._pending[self._begin + index] == 1

    @property
    def pending(self) -> list[int]:
        return [index for index, one in enumerate(self._pending[self._begin : self._end]) if one]

    def any_pending(self) -> bool:
        return self._pending.find(1, self._begin, self._end) >= 0

    def drop_pending(self) -> None:
        self._pending[self._begin : self._end] = bytes(self._end - self._begin)

    def note_reduction(self, indices: Iterable[int]) -> None:
        """Of these parameters' gradients."""
        for index in indices:
            self._reduced[self._begin + index] = 1

    def any(self) -> bool:
        return self.any_reduced() or self.any_pending()

    def any_reduced(self) -> bool:
        return self._reduced.find(1, self._begin, self._end) >= 0
