# SPDX-License-Identifier: Apache-2.0
"""The same work on many tensors in each minibatch, in few calls. Torch takes about a microsecond for each tensor, so
small ones in host memory are copied and divided by loops of the package's C file, from addresses that are read once."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..._dlpack import describer
from ..._loops import copy_each, divide_each_f32, divide_each_f64, same_each
from ..._native import WORDS, describe

_LARGE = 1 << 16  # elements, from which on memory counts for more than calls, and torch uses several threads

_describer = describer(torch.Tensor)  # from torch 2.10 on, before that if another package adds it
_DIVIDE = {torch.float32: divide_each_f32, torch.float64: divide_each_f64}


class Copies:
    """Of tensors that stay where they are, always into the same places."""

    def __init__(self, into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Both tensors of a pair have equally many elements."""
        looped = []
        self._by_torch: dict[object, tuple[list[int], list[torch.Tensor]]] = {}
        for index, (to, value) in enumerate(zip(into, values, strict=True)):
            if to.dtype is value.dtype and is_small(to) and is_small(value):
                if to.numel() > 0 and to.data_ptr() != value.data_ptr():
                    looped.append((to, value))
                continue
            # Foreach functions are quick with tensors of one kind.
            indices, places = self._by_torch.setdefault(kind_of(value, to), ([], []))
            indices.append(index)
            places.append(to)
        self._to, self._from = addresses([to for to, _ in looped]), addresses([value for _, value in looped])
        self._bytes = array("Q", [to.nbytes for to, _ in looped])

    def run(self, value: Callable[[int], torch.Tensor]) -> None:
        """`value(i)` is the tensor i of now, whose address has not changed."""
        copy_each(self._to, self._from, self._bytes)
        for indices, places in self._by_torch.values():
            torch._foreach_copy_(places, [value(index) for index in indices])

    def known_equal(self) -> bool:
        """Whether both tensors of each pair have the same bits; False also where that is not known, as on a GPU."""
        return not self._by_torch and same_each(self._to, self._from, self._bytes)


class Quotients:
    """Of sums that stay where they are, all of one kind_of()."""

    def __init__(self, sums: list[torch.Tensor]) -> None:
        self._sums = sums
        self._looped = sums[0].dtype in _DIVIDE and all(is_small(one) for one in sums)
        if self._looped:
            self._from = addresses(sums)
            self._lengths = array("Q", [one.numel() for one in sums])
            self._kinds = None if (described := descriptions(sums)) is None else described[2::WORDS]
        self._done = array("Q", [0])  # of divide()
        self._undivided = Unwritten([])

    def write(self, divisor: float, into: list[torch.Tensor]) -> None:
        """Into other tensors, all of one kind. The bits do not depend on a tensor's size: on a GPU only the foreach
        functions divide by a number itself."""
        if self._looped and (to := self._addresses_of(into)) is not None:
            self._loop(divisor, to, array("Q", [0]), into)
        else:
            _divide(self._sums, self._by(divisor), into)

    def begin(self) -> None:
        """Other sums are there now."""
        self._done[0] = 0
        if not self._looped:
            self._undivided = Unwritten(self._sums)

    def divide(self, divisor: float) -> None:
        """In place, each once since begin(): after an exception the rest is divided."""
        if self._looped:
            self._loop(divisor, self._from, self._done, self._sums)
        elif left := self._undivided.left():
            _divide(left, self._by(divisor), left)

    def _loop(self, divisor: float, to: array[int], done: array[int], into: list[torch.Tensor]) -> None:
        kind = self._sums[0].dtype
        _DIVIDE[kind](to, self._from, self._lengths, _as_tensor(divisor, kind).item(), done)
        torch.autograd.graph.increment_version(into)

    def _by(self, divisor: float) -> Any:
        return divisor if self._sums[0].device.type != "cpu" else _as_tensor(divisor, self._sums[0].dtype)

    def _addresses_of(self, into: list[torch.Tensor]) -> array[int] | None:
        """None: some are not as the sums are."""
        if (described := descriptions(into)) is not None:
            alike = described[2::WORDS] == self._kinds and described[1::WORDS] == self._lengths
            return described[::WORDS] if alike else None
        kind, plain = self._sums[0].dtype, torch.Tensor
        found = [
            one.data_ptr()
            if type(one) is plain and one.dtype is kind and one.is_cpu and one.numel() == length and one.is_contiguous()
            else -1
            for one, length in zip(into, self._lengths, strict=True)
        ]
        return None if -1 in found else array("Q", found)


class Unwritten:
    """Which of some tensors have not been written to, by torch's counters."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._versions = [one._version for one in tensors]

    def is_all_left(self) -> bool:
        return len(self.left()) == len(self._tensors)

    def left(self) -> list[torch.Tensor]:
        return [one for one, before in zip(self._tensors, self._versions, strict=True) if one._version == before]


def kind_of(values: torch.Tensor, into: torch.Tensor) -> tuple[object, ...]:
    """Work on tensors of one kind can be done together."""
    return values.dtype, values.device, into.dtype, into.device, values.numel() < _LARGE


def is_small(one: torch.Tensor) -> bool:
    return type(one) is torch.Tensor and one.is_cpu and one.is_contiguous() and one.numel() < _LARGE


def descriptions(tensors: list[torch.Tensor]) -> array[int] | None:
    """WORDS of each, equal if a tensor is where it was and as it was; None: torch does not describe some, or they are
    not plain tensors."""
    if _describer is None:
        return None
    made = array("Q", bytes(8 * WORDS * len(tensors)))
    at, _ = made.buffer_info()
    return made if describe(tensors, len(tensors), torch.Tensor, _describer, at) == len(tensors) else None


def addresses(tensors: Sequence[torch.Tensor]) -> array[int]:
    return array("Q", [one.data_ptr() for one in tensors])


def _divide(sums: list[torch.Tensor], by: Any, into: list[torch.Tensor]) -> None:
    device = sums[0].device
    alike = into[0].dtype is sums[0].dtype and into[0].device == device

    def together(these: list[torch.Tensor], those: list[torch.Tensor]) -> None:
        if not alike:  # other types, whose values are rounded once, or offloaded
            torch._foreach_copy_(those, torch._foreach_div(these, by))
            return
        if those[0] is not these[0]:
            torch._foreach_copy_(those, these)
        torch._foreach_div_(those, by)

    if sums[0].numel() < _LARGE:
        together(sums, into)
        return
    for one, to in zip(sums, into, strict=True):
        if alike and device.type == "cpu":
            torch.div(one, by, out=to)
        else:
            together([one], [to])


@functools.lru_cache(maxsize=16)
def _as_tensor(divisor: float, dtype: torch.dtype) -> torch.Tensor:
    """On the host torch makes one for each division by a number."""
    return torch.tensor(divisor, dtype=dtype, device="cpu")
