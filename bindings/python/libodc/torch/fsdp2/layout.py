# SPDX-License-Identifier: Apache-2.0
"""The position of each parameter in the data that FSDP2 gathers and reduces: found by a probe, not assumed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...errors import UnsupportedError
from .torch_state import AllGather, Buffers, FsdpGroup, ModuleAttribute, local_tensor

_PERIOD = 65521  # of the codes that verify a layout; a prime, so that no matrix has rows of it
_ROWS = 256  # periods compared at once, which bounds the memory for it
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(slots=True)
class Entry:
    """One parameter of a group. Offsets and lengths are those of one rank's part, in elements of the gathered or
    reduced type."""

    name: str
    attribute: ModuleAttribute
    parameter: nn.Parameter  # the sharded one; read again at each publish
    unsharded: nn.Parameter  # FSDP2 keeps it for as long as the group lives
    trainable: bool
    shape: torch.Size  # of the whole parameter
    dim: int  # it is divided along this dimension
    offset: int  # in the gathered part; unknown if an extension gathers
    length: int  # padded; the same on all ranks
    gradient_offset: int = -1  # in the reduced part, if every trainable parameter takes part
    gradient_length: int = 0

    @property
    def local(self) -> torch.Tensor:
        """This rank's shard."""
        local: torch.Tensor = local_tensor(self.parameter)
        return local


@dataclass(frozen=True)
class Layout:
    """One rank's part of a group, as FSDP2 gathers it (`numel` elements of `dtype`) and reduces it."""

    entries: list[Entry]
    process_group: dist.ProcessGroup | None  # None: one rank, which gathers nothing
    numel: int
    dtype: torch.dtype  # uint8 where FSDP2 gathers the bytes of several types
    gradient_numel: int  # of all trainable parameters
    gradient_dtype: torch.dtype

    @property
    def trainable(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.trainable]


class _Asked(Buffers, AllGather):
    """Replaces the all-gather while a group is probed: records what is gathered, and lets `answer` fill the output."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = answer
        self.group: dist.ProcessGroup | None = None
        self.numel = 0
        self.dtype = torch.uint8

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self.group, self.numel, self.dtype = group, input_tensor.numel(), input_tensor.dtype
        work: dist.Work | None = self.answer(output_tensor, input_tensor, group, async_op)
        return work


def _codes(write: Callable[[torch.Tensor], None]) -> Callable[..., None]:
    """Codes of positions, in place of parameters."""
    return lambda output, *_: write(_countable(output))


def _countable(tensor: torch.Tensor) -> torch.Tensor:
    """In elements that represent 0 to 255 exactly."""
    return tensor if tensor.dtype in _FLOATS else tensor.view(torch.uint8)


def _base(dtype: torch.dtype) -> int:
    """All smaller whole numbers are exact in the type."""
    return {torch.float32: 4096, torch.float64: 4096, torch.float16: 2048}.get(dtype, 256)


def _write_digit(k: int, out: torch.Tensor) -> None:
    """Writes the k-th digit of each position, in the base of the type."""
    base = _base(out.dtype)
    run = base**k  # positions with the same digit
    rows = out.numel() // run
    digits = torch.arange(base, device=out.device).to(out.dtype)
    whole = rows // base
    out[: whole * base * run].view(whole, base, run).copy_(digits.view(1, base, 1))
    out[whole * base * run : rows * run].view(-1, run).copy_(digits[: rows - whole * base].view(-1, 1))
    out[rows * run :] = digits[rows % base]


@functools.cache
def _random_codes() -> torch.Tensor:
    return torch.randint(0, 256, (_PERIOD,), generator=torch.Generator().manual_seed(0), device="cpu")


def _noise(out: torch.Tensor, origin: int = 0) -> torch.Tensor:
    """One period of codes by which positions can be told apart, beginning at position `origin`."""
    return _random_codes().roll(-origin % -_PERIOD).to(out.device, out.dtype)


def _write_noise(out: torch.Tensor) -> None:
    noise, whole = _noise(out), out.numel() // _PERIOD
    out[: whole * _PERIOD].view(whole, _PERIOD).copy_(noise)
    out[whole * _PERIOD :] = noise[: out.numel() - whole * _PERIOD]


def _is_noise(seen: torch.Tensor, origin: int) -> list[torch.Tensor]:
    """Whether all are equal, as several results on the device: reading them makes the host wait."""
    noise, whole = _noise(seen, origin), seen.numel() // _PERIOD
    rows = seen[: whole * _PERIOD].view(whole, _PERIOD)
    rest = seen[whole * _PERIOD :]
    return [(rest == noise[: rest.numel()]).all(), *((some == noise).all() for some in rows.split(_ROWS))]


def gathered_parts(entry: Entry, ranks: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Each rank's part of the unsharded parameter, flat; none of ranks that have no part."""
    seen = entry.attribute.get().detach()
    if isinstance(seen, DTensor):  # also divided by tensor parallelism
        seen = seen.to_local()
    parts = torch.chunk(seen, ranks, dim=entry.dim)
    flat = [part.reshape(-1) for part in parts]
    return [part if dtype in _FLOATS else part.view(torch.uint8) for part in flat]


def probe(group: FsdpGroup, names: dict[int, str]) -> Layout:
    """Unshards `group` a few times with known codes in place of the parameters, and finds where they appear.

    `names`: of sharded parameters, by id. No rank waits for another, unless an all-gather extension transforms the
    gathered data: then it is gathered once, and positions in it stay unknown.
    """
    module = group.module
    opaque = group.gathers_by_extension
    comm = _Asked(group.settings.all_gather if opaque else _codes(_write_noise))
    module.set_custom_all_gather(comm)
    entries = _entries(group, names)

    def keep_unsharded() -> None:
        for entry in entries:
            entry.unsharded = entry.attribute.get()

    with torch.no_grad():
        _while_unsharded(group, keep_unsharded)
        reduce_dtype = group.reduce_dtype or _gradient_dtype(entries)
        if comm.group is None:
            if group.ranks > 1:
                raise _unknown(group, "nothing is gathered when it is unsharded")
            return Layout(entries, None, 0, comm.dtype, _place_gradients(entries, 1), reduce_dtype)
        ranks = comm.group.size()
        dtype = comm.dtype if comm.dtype in _FLOATS else torch.uint8
        numel = comm.numel * (1 if dtype is comm.dtype else comm.dtype.itemsize)
        if not opaque:
            _find_places(group, comm, entries, numel, ranks, dtype)
    return Layout(entries, comm.group, numel, dtype, _place_gradients(entries, ranks), reduce_dtype)


def _while_unsharded(group: FsdpGroup, read: Callable[[], None]) -> None:
    try:
        group.module.unshard()
        read()
    finally:
        group.module.reshard()


def _find_places(
    group: FsdpGroup, comm: _Asked, entries: list[Entry], numel: int, ranks: int, dtype: torch.dtype
) -> None:
    positions, base = [0] * len(entries), _base(dtype)

    def read_digit(k: int) -> None:
        for i, entry in enumerate(entries):
            first = gathered_parts(entry, ranks, dtype)[0]
            positions[i] += int(first[0].item()) * base**k if first.numel() > 0 else 0

    k = 0
    while k == 0 or base**k < ranks * numel:
        comm.answer = _codes(partial(_write_digit, k))
        _while_unsharded(group, partial(read_digit, k))
        k += 1
    _place(group, entries, positions, numel, ranks, dtype)
    comm.answer = _codes(_write_noise)
    _while_unsharded(group, lambda: _verify(group, entries, numel, ranks, dtype))


def _entries(group: FsdpGroup, names: dict[int, str]) -> list[Entry]:
    made = []
    for attribute in group.attributes:
        parameter = attribute.get()
        name = names.get(id(parameter), attribute.name)
        if not isinstance(parameter, DTensor):
            raise UnsupportedError(f'parameter "{name}" is not a sharded parameter of FSDP2')
        # FSDP2's own placement comes first; Shard and its strided kind for tensor parallelism have a dim.
        dim = next((one.dim for one in parameter.placements if hasattr(one, "dim")), 0)
        made.append(Entry(name, attribute, parameter, parameter, parameter.requires_grad, parameter.shape, dim, 0, 0))
    return made


def _gradient_dtype(entries: list[Entry]) -> torch.dtype:
    trainable = [entry.unsharded.dtype for entry in entries if entry.trainable]
    return trainable[0] if trainable else torch.float32


def _elements(entry: Entry, ranks: int) -> int:
    """The length of a rank's padded part: FSDP2 divides like torch.chunk, and pads to the first rank's length."""
    seen = entry.unsharded.to_local() if isinstance(entry.unsharded, DTensor) else entry.unsharded
    shape = list(seen.shape)
    shape[entry.dim] = math.ceil(shape[entry.dim] / ranks)
    return math.prod(shape)


def _place(
    group: FsdpGroup, entries: list[Entry], positions: list[int], numel: int, ranks: int, dtype: torch.dtype
) -> None:
    """Sets offsets and lengths; together they must fill a rank's part without a gap."""
    for entry, position in zip(entries, positions, strict=True):
        entry.offset = position
        entry.length = _elements(entry, ranks) * (1 if dtype in _FLOATS else entry.unsharded.dtype.itemsize)
    entries.sort(key=lambda entry: (entry.offset, entry.length))
    end = 0
    for entry in entries:
        if entry.length > 0 and entry.offset != end:
            raise _unknown(group, f'"{entry.name}" begins at {entry.offset}, not at {end}')
        end += entry.length
    if end != numel:
        raise _unknown(group, f"parameters fill {end} of {numel} elements")


def _verify(group: FsdpGroup, entries: list[Entry], numel: int, ranks: int, dtype: torch.dtype) -> None:
    """Checks that every element of every parameter has the code of its position in the layout."""
    for entry in entries:
        parts = [
            torch.stack(_is_noise(part, rank * numel + entry.offset)).all()
            for rank, part in enumerate(gathered_parts(entry, ranks, dtype))
        ]
        correct = torch.stack(parts).tolist()  # waits for the device
        if not all(correct):
            raise _unknown(group, f'rank {correct.index(False)}\'s part of "{entry.name}" is not contiguous')


def _place_gradients(entries: list[Entry], ranks: int) -> int:
    """FSDP2 reduces the trainable parameters in the order in which it gathers all of them, which Group.check_order
    verifies when gradients are first added."""
    end = 0
    for entry in entries:
        if entry.trainable:
            entry.gradient_offset, entry.gradient_length = end, _elements(entry, ranks)
            end += entry.gradient_length
    return end


def _unknown(group: FsdpGroup, why: str) -> UnsupportedError:
    return UnsupportedError(
        f'the layout of FSDP group "{group.name}" could not be derived with torch {torch.__version__}: {why}'
    )
