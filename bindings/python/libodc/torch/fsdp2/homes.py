# SPDX-License-Identifier: Apache-2.0
"""Parameters that live in their slice, so publishing copies nothing, and what tells that they were edited there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.dlpack import from_dlpack

from ..._abi import Type
from ..._loops import FINGERPRINT_BYTES, fingerprint_at
from ...memory import View
from .forks import watch
from .layout import Entry, Layout
from .relocation import Move, move, move_if_alone
from .torch_state import FsdpGroup, local_tensors

TYPES = {
    torch.float32: Type.F32,
    torch.float64: Type.F64,
    torch.bfloat16: Type.BF16,
    torch.float16: Type.F16,
    torch.uint8: Type.BYTES,
}
Parameters = Literal["slice", "copy"]

SEEN, SHARED = "seen by other tensors", "shared with another process"
"""Reasons that lie in the program, which can remove them."""

_ROWS = 64  # sums that a fingerprint of GPU memory consists of
_SMALL = 8192  # bytes that are rather kept than summed: copying takes one call


@dataclass(slots=True)
class _Home:
    entry: Entry
    memory: torch.Tensor  # the parameter's part of the slice, padded, with a storage of its own
    address: int  # of that part; torch moves a storage that it hands to another process to shared memory
    tried: int = 0  # the address of the last memory that was not moved here
    why_not: str = ""

    @property
    def holds(self) -> bool:
        local = self.entry.local
        return local.numel() == 0 or local.data_ptr() == self.address


class Homes:
    """Of one group. A parameter has one where what is gathered is its own memory, bit by bit: of the gathered type, on
    the device where it is gathered, a plain tensor, and in no other group."""

    def __init__(self, fsdp: FsdpGroup, layout: Layout) -> None:
        self._fsdp = fsdp
        self._layout = layout
        self._homes: dict[int, _Home] = {}  # by the entry's id
        self._refused: list[tuple[str, str]] = []  # names of parameters without a home, and why
        self._fingerprint: torch.Tensor | None = None
        self._bits: torch.Tensor | None = None  # of the slice; None: there is no home
        # While all live in the slice: those with elements here, where they are, and from what FSDP2 gathers, by
        # attribute. Empty: some have no home.
        self._filled: list[Entry] = []
        self._addresses: list[int] = []
        self._memories: list[torch.Tensor | None] = []
        self._versions: list[int] = []  # at the publish

    def build(self, view: View, slice: torch.Tensor, elsewhere: Mapping[int, str]) -> None:
        """`elsewhere`: why parameters stay where they are, by their ids."""
        if slice.device.type == "cpu":
            watch(self, move_out)
        for entry in self._layout.entries:
            begin, dtype = entry.offset * self._layout.dtype.itemsize, entry.local.dtype
            if why := elsewhere.get(id(entry.parameter)) or _why_not(entry, begin, slice.device):
                self._refused.append((entry.name, why))
                continue
            length = entry.length * self._layout.dtype.itemsize // dtype.itemsize
            memory = from_dlpack(view.part(begin, length, TYPES[dtype]))
            self._homes[id(entry)] = _Home(entry, memory, memory.data_ptr())
        if self._homes:
            self._bits = slice.view(torch.uint8)
        filled = [entry for entry in self._layout.entries if entry.local.numel() > 0]
        if all(id(entry) in self._homes for entry in filled):
            memories = {entry.attribute: self._homes[id(entry)].memory for entry in filled}
            self._filled = filled
            self._memories = [memories.get(attribute) for attribute in self._fsdp.attributes]
            self._addresses = [one.data_ptr() for one in memories.values()]

    def __bool__(self) -> bool:
        """Whether a parameter can live in the slice."""
        return bool(self._homes)

    def hold(self, entry: Entry) -> bool:
        """Whether the parameter is in its slice now."""
        home = self._homes.get(id(entry))
        if home is None or not home.holds:
            return False
        memory = self._fsdp.memory(entry.attribute)  # loading may have replaced the parameter
        return memory.numel() == 0 or memory.data_ptr() == home.address

    def hold_all(self) -> bool:
        """Whether FSDP2 gathers nothing but the slice."""
        if not self._addresses:
            return False
        both = zip(self._fsdp.memories(), self._memories, strict=True)
        if any(now is not home and home is not None for now, home in both):
            return False
        shards = local_tensors([entry.parameter for entry in self._filled])
        return [one.data_ptr() for one in shards] == self._addresses

    def away(self) -> Sequence[int]:
        """The indices of entries that are not in the slice now."""
        if not self._homes:
            return range(len(self._layout.entries))
        return [index for index, entry in enumerate(self._layout.entries) if not self.hold(entry)]

    # ---- moving ----

    def moves_in(self) -> Iterator[tuple[_Home, Move]]:
        """Of parameters whose memory is new: at attach, and where loading has replaced it."""
        for home in self._homes.values():
            memory = self._fsdp.memory(home.entry.attribute)
            half_moved = home.holds and memory.numel() > 0 and memory.data_ptr() != home.address  # by an exception
            if (home.holds and not half_moved) or home.tried == memory.data_ptr():
                continue
            if home.memory.data_ptr() != home.address:
                home.why_not = SHARED
            elif half_moved or _is_whole(memory, home):
                yield home, Move(self._fsdp, home.entry.attribute, home.memory)
                continue
            else:
                home.why_not = "part of a larger tensor"
            home.tried = memory.data_ptr()

    def moves_out(self) -> Iterator[Move]:
        for home in self._homes.values():
            if home.memory.numel() > 0 and self._fsdp.memory(home.entry.attribute).data_ptr() == home.address:
                yield Move(self._fsdp, home.entry.attribute, torch.empty_like(home.memory))

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Names and reasons of parameters that do not live in the slice."""
        yield from self._refused
        for home in self._homes.values():
            if not home.holds:
                yield home.entry.name, home.why_not

    @property
    def nbytes(self) -> int:
        """Of parameters that live in the slice."""
        return sum(home.memory.nbytes for home in self._homes.values() if home.holds)

    # ---- edits: by what was published, since torch's counters miss those through .data ----

    def note(self) -> None:
        """The parameters are published as they are now."""
        if self._bits is None or not any(home.holds for home in self._homes.values()):
            self._fingerprint = None
        elif self._fingerprint is not None and is_small(self._bits):
            self._fingerprint.copy_(self._bits)  # in place: others know its address
        else:
            self._fingerprint = fingerprint(self._bits)
            if not is_small(self._bits):
                self._versions = self._count_edits()

    def noted_bits(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of a small slice: what note() has kept, and the bits that it has copied there."""
        if self._fingerprint is None or self._bits is None or not is_small(self._bits):
            return None
        return self._fingerprint, self._bits

    def _count_edits(self) -> list[int]:
        """Torch's counters, of each parameter and then of each shard of those that have a home."""
        parameters = [home.entry.parameter for home in self._homes.values()]
        return [one._version for one in (*parameters, *local_tensors(parameters))]

    def fingerprints(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of the slice now, and when it was published; None: no parameter lives in it."""
        if self._fingerprint is None or self._bits is None:
            return None
        return fingerprint(self._bits), self._fingerprint

    def edited(self) -> str | None:
        """Names what differs in the slice from what was published there: in a large one by torch's counters of edits,
        which those through .data and by optimizers do not advance."""
        both = self.fingerprints()
        if both is None or torch.equal(*both):
            return None
        if self._bits is not None and is_small(self._bits):
            at = int((both[0] != both[1]).nonzero()[0]) // self._layout.dtype.itemsize
            before = [entry.name for entry in self._layout.entries if entry.length > 0 and entry.offset <= at]
            return f'parameter "{before[-1]}"'
        names = [home.entry.name for home in self._homes.values()] * 2
        counts = zip(names, self._versions, self._count_edits(), strict=True)
        if changed := [name for name, before, now in counts if before != now]:
            return f'parameter "{changed[0]}"'
        some = [f'"{home.entry.name}"' for home in itertools.islice(self._homes.values(), 3)]
        return f"one of the parameters {', '.join(some)}…"


def move_in(groups: Iterable[Homes]) -> None:
    moves = [one for homes in groups for one in homes.moves_in()]
    if moves:
        move_if_alone([one for _, one in moves])
        for home, one in moves:
            home.why_not = SEEN if one.held else ""
            # What was there is free, and may be a parameter's again.
            home.tried = one.fsdp.memory(one.attribute).data_ptr() if one.held else 0


def move_out(groups: Iterable[Homes]) -> None:
    """Peers may still read the slices, and must not see what changes next."""
    if moves := [one for homes in groups for one in homes.moves_out()]:
        with torch.no_grad():
            move(moves)


def is_small(bits: torch.Tensor) -> bool:
    return bits.numel() <= _SMALL


def fingerprint(bits: torch.Tensor) -> torch.Tensor:
    """One pass over them. On a GPU sums over all bits, and the bits that are left over."""
    if is_small(bits):
        return bits.clone()
    if bits.is_cpu:
        sums = torch.empty(FINGERPRINT_BYTES, dtype=torch.uint8, device="cpu")
        fingerprint_at(bits.data_ptr(), bits.numel(), sums.data_ptr())
        return sums
    whole = bits.numel() // (8 * _ROWS) * (8 * _ROWS)
    sums = bits[:whole].view(torch.int32).view(_ROWS, -1).sum(1, dtype=torch.int64)
    return torch.cat([sums.view(torch.uint8), bits[whole:]])


def _why_not(entry: Entry, begin: int, device: torch.device) -> str:
    """Empty: the parameter can live at byte `begin` of a slice on `device`."""
    local, gathered = entry.local, entry.unsharded.dtype
    if type(local) is not torch.Tensor:
        return f"of the class {type(local).__name__}"
    if local.dtype is not gathered:
        return f"{_name(local.dtype)}, gathered as {_name(gathered)}"
    if local.device != device:
        return f"on {local.device}, gathered on {device}"
    if local.dtype not in TYPES:
        return f"{_name(local.dtype)}, which slices do not hold"
    if begin % local.dtype.itemsize != 0:
        return f"{_name(local.dtype)} at byte {begin} of the slice"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_whole(memory: torch.Tensor, home: _Home) -> bool:
    local = home.entry.local
    return (
        memory.dtype is home.memory.dtype
        and memory.numel() == home.memory.numel()
        and memory.untyped_storage().nbytes() == memory.nbytes
        and memory.data_ptr() == local.data_ptr()
        and local.is_contiguous()
    )
