# SPDX-License-Identifier: Apache-2.0
"""Which trainable parameters have had gradients in this minibatch: of all groups in one array, since there may be
hundreds of groups, and a loop over them costs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class Participation:
    def __init__(self) -> None:
        self._reduced = bytearray()
        self._backwards = array("L")

    def add_group(self, count: int) -> GroupParticipation:
        """Of the next `count` parameters."""
        begin = len(self._reduced)
        self._reduced += bytes(count)
        self._backwards.extend([0] * count)
        return GroupParticipation(self._reduced, self._backwards, begin, begin + count)

    def each(self) -> list[bool]:
        return list(map(bool, self._reduced)) if 0 in self._reduced else [True] * len(self._reduced)

    def any(self) -> bool:
        return 1 in self._reduced

    def most_backwards(self) -> int:
        """Of a parameter."""
        return max(self._backwards, default=0)

    def forget(self) -> None:
        self._reduced[:] = bytes(len(self._reduced))
        self._backwards[:] = array("L", bytes(self._backwards.itemsize * len(self._backwards)))


class GroupParticipation:
    def __init__(self, reduced: bytearray, backwards: array[int], begin: int, end: int) -> None:
        self._reduced, self._backwards, self._begin, self._end = reduced, backwards, begin, end

    def ran_backward(self, index: int) -> None:
        self._backwards[self._begin + index] += 1

    def take(self, indices: Iterable[int]) -> None:
        """Their gradients are being reduced."""
        for index in indices:
            self._reduced[self._begin + index] = 1

    def any(self) -> bool:
        return self._reduced.find(1, self._begin, self._end) >= 0
