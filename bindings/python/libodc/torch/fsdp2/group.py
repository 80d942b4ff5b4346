# SPDX-License-Identifier: Apache-2.0
"""One FSDP group over ODC: its two shards, and FSDP2's communication hooks, which use them."""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.dlpack import from_dlpack

from ...errors import ArgumentError, InternalError, PhaseError
from ...shard import Shard, ShardDescription
from .backward import Backwards
from .gradient_views import Gradients, GradientViews
from .homes import TYPES, Homes, Parameters
from .layout import Entry, Layout, gathered_parts
from .overlap import GatherWork, Overlap
from .participation import Participation
from .streams import Complaint, Streams
from .torch_state import (
    AllGather,
    Buffers,
    FsdpGroup,
    ReduceScatter,
    Settings,
    local_tensors,
)

_SUM = dist.ReduceOp.SUM
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(eq=False)
class JobHooks:
    """The part of a job that hooks and a Pool call."""

    backwards: Backwards
    participation: Participation
    overlap: Overlap | None
    reads_only: bool  # it has no optimizer, so its minibatches need not end
    before_gather: Callable[[], None]
    before_exchange: Callable[[], None]  # a Pool publishes samples in the job's minibatch
    before_reduce: Callable[[Group], None]
    # A single rank's FSDP2 is about to write the gradients into the tensor, and to add them to .grad.
    reduces_alone: Callable[[Group, torch.Tensor], None]
    add: Callable[[Group, torch.Tensor], None]
    abort: Callable[[BaseException], None]  # ends every rank's waits with this rank's error


@dataclasses.dataclass(frozen=True)
class Living:
    """Where parameters and gradients are to live."""

    parameters: Parameters
    gradients: Gradients
    tied: set[int]  # ids of parameters in several groups, which live where they are


class Group:
    """`trainable` is empty in a read-only job: then there is no gradient shard. A single rank gathers nothing, and has
    a gradient shard for exact sums only."""

    def __init__(
        self,
        fsdp: FsdpGroup,
        layout: Layout,
        before: Settings,
        ranks: int,
        trainable: list[Entry],
        streams: Streams,
        sums: Literal["exact"] | None,
        largest: float,
    ) -> None:
        self.fsdp = fsdp
        self.name = fsdp.name
        self.layout = layout
        self.ranks = ranks
        self.streams = streams
        self.sums = sums
        self._first_largest = largest  # of exact sums; 0: the default
        self.trainable = trainable
        self.homes = Homes(fsdp, layout)
        self.views = GradientViews(trainable)
        self.own_sums: list[torch.Tensor] = []  # of the trainable parameters
        self.before = before  # the state before attach, restored by remove()
        self.divisor = float(self.before.divide_factor or ranks)
        self.next_output: int | None = None  # elements of the output that is to follow the last input; None: none is
        self.reducing: list[int] = []  # indices in trainable
        self._frozen = [entry for entry in layout.entries if not entry.trainable]
        # The last buffers that were checked, so that equal ones are not.
        self._gathers: tuple[Any, ...] | None = None
        self._adds: tuple[Any, ...] | None = None
        self._hooks: list[Any] = []
        self.adds = len(trainable) > 0 and (layout.process_group is not None or sums is not None)
        # Gradients, until their order in a reduction has been checked.
        self._unchecked: dict[int, torch.Tensor | None] | None = {} if self.adds else None

    # ---- attaching ----

    def descriptions(self) -> list[ShardDescription]:
        """The parameter shard's and the gradient shard's, of those that there are."""
        memory, ranks, made = self.streams.memory, self.ranks, []
        if self.layout.process_group is not None:
            numel, type = self.layout.numel * ranks, TYPES[self.layout.dtype]
            made.append(ShardDescription(f"parameters of {self.name}", numel, type, None, memory=memory))
        if self.adds:
            numel, type = self.layout.gradient_numel * ranks, TYPES[self.layout.gradient_dtype]
            made.append(
                ShardDescription(
                    f"gradients of {self.name}",
                    numel,
                    None,
                    type,
                    memory=memory,
                    sum=self.sums,
                    largest=self._first_largest,
                )
            )
        return made

    @property
    def largest(self) -> float | None:
        """What the exact sums of this rank's slice ask for in the next minibatch; None: there are none."""
        return self._gradients.slice.largest if self.adds and self.sums is not None else None

    def install(self, shards: list[Shard], job: JobHooks, live: Living) -> None:
        """Takes the shards registered from descriptions() and installs the hooks in FSDP2."""
        if self.layout.process_group is not None:
            self._parameters = shards[0]
            view = shards[0].slice.parameters
            self._published = from_dlpack(view)
            if live.parameters == "slice" and view is not None:
                self.homes.build(view, self._published, self.elsewhere(live.tied))
        if self.adds:
            self._gradients = shards[-1]
            view = shards[-1].slice.gradients
            sums = from_dlpack(view)
            self.own_sums = [_part(sums, entry.gradient_offset, entry.local.shape) for entry in self.trainable]
            if live.gradients == "view" and self.sums is None and view is not None:
                self.views.build(view, sums, live.tied)
        self._running = job.backwards
        self._reads_only = job.reads_only
        self.participation = job.participation.add_group(len(self.trainable))
        self.mine = Settings(self.all_gather(job), Add(self, job), 1.0, True)
        self.fsdp.apply(self.mine)
        for index, entry in enumerate(self.trainable):
            self._hooks.append(entry.unsharded.register_post_accumulate_grad_hook(self._noted(index)))

    def elsewhere(self, tied: set[int]) -> dict[int, str]:
        """By their ids, why parameters do not live in the slice, for reasons other than their own type and device."""
        return dict.fromkeys(tied, "in several FSDP groups")

    def all_gather(self, job: JobHooks) -> AllGather:
        return Gather(self, job)

    def restore(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.fsdp.apply(self.before)

    def _noted(self, index: int) -> Callable[[torch.Tensor], None]:
        # The garbage collector does not see hooks of parameters.
        weak = weakref.ref(self)

        def note(unsharded: torch.Tensor) -> None:
            group = weak()
            if group is None:
                return
            if group._unchecked is not None:
                # Gradients accumulated over several backwards may be kept elsewhere.
                group._unchecked[index] = None if group.participation.is_pending(index) else unsharded.grad
            group.participation.note_backward(index)
            group._running.note_gradient()

        return note

    @property
    def parameter_bytes(self) -> int:
        return self.layout.numel * self.layout.dtype.itemsize  # 0 on a single rank

    @property
    def sum_bytes(self) -> int:
        if not self.adds:
            return 0
        wide = self.sums is not None or self.layout.gradient_dtype == torch.float64
        return self.layout.gradient_numel * (8 if wide else 4)

    # ---- publishing ----

    @functools.cached_property
    def parts(self) -> list[torch.Tensor]:
        """The parameters in the slice."""
        entries = self.layout.entries
        both = zip(entries, self.published_as(entries), strict=True)
        return [_part(self._published, entry.offset, value.shape) for entry, value in both]

    def published_as(self, entries: list[Entry]) -> list[torch.Tensor]:
        """What is copied into their parts: the shards, or their bytes."""
        shards = local_tensors([entry.parameter for entry in entries])
        if self.layout.dtype is not torch.uint8:
            return shards
        both = zip(entries, shards, strict=True)
        return [shard.reshape(-1).to(entry.unsharded.dtype).view(torch.uint8) for entry, shard in both]

    def differs(self) -> str | None:
        """Words for a parameter whose current shard differs from the published one."""
        if self.layout.process_group is None:
            return None
        for entry, part in zip(self.layout.entries, self.parts, strict=True):
            if self.homes.hold(entry):
                continue
            now = dataclasses.replace(entry, parameter=self.fsdp.sharded(entry.attribute))  # loading may replace it
            (value,) = self.published_as([now])
            if not _same(value.to(part.device, part.dtype), part):
                return f'parameter "{entry.name}"'
        return self.homes.edited()

    def edited_copy(self) -> str | None:
        """Words for a parameter whose gathered copy FSDP2 still has, and which differs there from what was gathered."""
        if self.layout.process_group is None or self.fsdp.is_sharded:
            return None
        rank = dist.get_rank(self.layout.process_group)
        in_slice = self.homes.edited() is not None  # then it no longer holds what was gathered
        for entry in self.layout.entries:
            if in_slice and self.homes.hold(entry):
                continue
            for mine in gathered_parts(entry, self.ranks, self.layout.dtype)[rank : rank + 1]:
                was = self._published[entry.offset : entry.offset + mine.numel()]
                if not _same(mine.to(was.device), was):
                    return f'parameter "{entry.name}"'
        return None

    # ---- called by the hooks ----

    def changed(self) -> str | None:
        """If the current slice differs from the published one, words for a parameter that does; none if only padding
        differs."""
        return self.differs()

    def _complaint(self) -> PhaseError | None:
        if (what := self.changed()) is None:
            return None
        return PhaseError(
            f'{what} of FSDP group "{self.name}" has changed since it was published: after edits outside '
            "of optimizer.step() (loading, averaging, clamping) call job.publish() on all ranks, or edit within "
            "job.editing()"
        )

    def check_unedited(self) -> None:
        """Before the sync: raises, on a GPU behind it, if a parameter was edited in its slice in this minibatch."""
        self.streams.wait_published()
        self._compare_slice(self._edited_complaint)

    def _edited_complaint(self) -> PhaseError | None:
        if (what := self.homes.edited()) is None:
            return None
        return PhaseError(
            f'{what} of FSDP group "{self.name}" has changed within the minibatch, in which other ranks may read it: '
            "edit between sync_gradients() and the step, or after the step within job.editing(), or "
            'attach(parameters="copy"); sync_gradients(valid=False) drops this minibatch on all ranks'
        )

    def gather(self, output: torch.Tensor, mine: torch.Tensor, overlap: Overlap | None) -> GatherWork | None:
        """Fills `output`, now or when the work is waited for."""
        gathered = self.participation.gathered and not self._reads_only  # there every gather compares
        if overlap is None and gathered and _kind(output) == self._gathers and output.is_contiguous():
            self._parameters.gather_at(output.data_ptr(), self._parameters.numel)
            return None
        if mine.nbytes != self._published.nbytes or (mine.is_floating_point() and mine.dtype != self.layout.dtype):
            raise PhaseError(
                f'FSDP group "{self.name}" gathers {mine.numel()} elements of {mine.dtype}, and at attach gathered '
                f"{self.layout.numel} of {self.layout.dtype}: remove() the job before moving or converting the "
                "model, then attach again"
            )
        if not gathered:
            self._check_published(mine)
            self.participation.note_gather()
        if overlap is not None:
            return overlap.gather(self._parameters, output)
        self._parameters.gather(output)
        self._gathers = _kind(output)
        return None

    def _check_published(self, mine: torch.Tensor) -> None:
        """`mine`: what FSDP2 gathers. Where that is the slice itself, only its fingerprint shows edits."""
        self.streams.wait_published()
        if not self.homes.hold_all():
            self.streams.compare(_bits(mine.view(-1)), _bits(self._published.view(mine.dtype)), self._complaint)
        self._compare_slice(self._complaint)

    def _compare_slice(self, complaint: Complaint) -> None:
        if (both := self.homes.fingerprints()) is not None:
            self.streams.compare(*both, complaint)

    def take_pending(self) -> None:
        """FSDP2 begins to reduce the gradients that exist."""
        for entry in self._frozen:
            if entry.parameter.requires_grad:
                raise ArgumentError(
                    f'parameter "{entry.name}" of FSDP group "{self.name}" was frozen at attach and is trainable now: '
                    "remove() the job and attach again"
                )
        self.reducing = self.participation.pending
        self.participation.drop_pending()
        for index in self.reducing:
            self.views.reducing(index, self.trainable[index].parameter)
        self.participation.note_reduction(self.reducing)

    def add(self, full: torch.Tensor, overlap: Overlap | None) -> None:
        """`full`: the input of FSDP2's reduce-scatter: for each rank its parts of the parameters that took part."""
        if full.dtype != self.layout.gradient_dtype:
            raise InternalError(
                f'FSDP group "{self.name}" reduces {full.dtype}, not {self.layout.gradient_dtype} as at attach'
            )
        whole = self.spread(full)
        self.check_order(full)
        if overlap is not None:
            overlap.add(self._gradients, whole)
        elif _kind(whole) == self._adds and whole.is_contiguous():
            self._gradients.scatter_add_at(whole.data_ptr(), self._gradients.numel)
        else:
            self._gradients.scatter_add(whole)
            self._adds = _kind(whole)

    def check_order(self, full: torch.Tensor) -> None:
        """Checks once, in the first rank's part, that the gradients are in `full` where the layout says."""
        if self._unchecked is None:
            return
        kept, self._unchecked = self._unchecked, None
        begin = 0
        for index in self.reducing:
            entry, gradient = self.trainable[index], kept.get(index)
            if gradient is not None and not isinstance(gradient, DTensor):
                first = gradient.chunk(self.ranks, dim=entry.dim)[0].reshape(-1).to(full.dtype)
                if not _same(first, full[begin : begin + first.numel()]):
                    raise InternalError(
                        f'FSDP group "{self.name}" reduces the gradient of "{entry.name}" elsewhere than expected with '
                        f"torch {torch.__version__}"
                    )
            begin += entry.gradient_length

    def spread(self, full: torch.Tensor) -> torch.Tensor:
        """`full` in the layout of all trainable parameters, with zeros for those that did not take part."""
        if full.numel() == self.layout.gradient_numel * self.ranks:
            self.reducing = list(range(len(self.trainable)))
            self.participation.note_reduction(self.reducing)
            return full
        took = [self.trainable[index] for index in self.reducing]
        lengths = [entry.gradient_length for entry in took]
        if full.numel() != sum(lengths) * self.ranks:
            raise ArgumentError(
                f'FSDP group "{self.name}" reduces {full.numel()} elements, but the parameters that autograd gave '
                f"gradients have {sum(lengths) * self.ranks}: a .grad that was set by hand cannot be reduced"
            )
        whole = full.new_zeros(self.ranks, self.layout.gradient_numel)
        columns = full.view(self.ranks, -1).split(lengths, dim=1)
        for entry, column in zip(took, columns, strict=True):
            whole[:, entry.gradient_offset : entry.gradient_offset + entry.gradient_length].copy_(column)
        return whole.view(-1)

    def check_settings(self) -> None:
        """Raises if FSDP2 reduces by other settings than those of attach."""
        if self.fsdp.has(self.mine):
            return
        raise PhaseError(
            f'the communication hooks, the gradient divide factor or the forced sum of FSDP group "{self.name}" were '
            "changed after attach: set a factor before attach, or pass sync_gradients(divisor=…)"
        )

    def check_reduced(self) -> None:
        """Before the sync: raises if FSDP2 has not reduced some gradients, or if these hooks have reduced nothing and
        the settings were changed."""
        pending = self.participation.pending
        if pending or not self.participation.any_reduced():
            self.check_settings()
        if not pending:
            return
        names = ", ".join(f'"{self.trainable[index].name}"' for index in pending[:3])
        raise PhaseError(
            f'gradients of {len(pending)} parameters of FSDP group "{self.name}" ({names}…) are accumulated '
            "but not reduced: the last backward of a rank in a minibatch needs set_requires_gradient_sync(True)"
        )

    def drop_pending(self) -> None:
        """Drops gradients that FSDP2 has not reduced, so that they are not part of a later reduction."""
        for entry in self.trainable:
            entry.unsharded.grad = None
        self.fsdp.drop_accumulated()
        self.participation.drop_pending()
        self.next_output = None
        if self._unchecked is not None:
            self._unchecked.clear()


class Gather(Buffers, AllGather):
    """Gathers the owners' slices instead of an all-gather."""

    def __init__(self, group: Group, job: JobHooks) -> None:
        self._group, self._job = group, job

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self._job.before_gather()
        return self._group.gather(output_tensor, input_tensor, self._job.overlap)


class Add(Buffers, ReduceScatter):
    """Adds gradients into the owners' accumulators instead of a reduce-scatter. FSDP2 then adds zeros to .grad, which
    sync_gradients fills."""

    def __init__(self, group: Group, job: JobHooks) -> None:
        self._group, self._job = group, job
        self._input: torch.Tensor | None = None  # on a single rank, which adds exactly

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        # Called for the input, before the gradients are copied into it, and then for the output, unless an exception
        # came in between. It is the input if gradients are pending, or the size differs.
        group, numel = self._group, math.prod(size)
        if numel == group.next_output and not group.participation.any_pending():
            group.next_output = None
            self._add_alone()
            return super().allocate(size, dtype=dtype, device=device)
        group.check_settings()
        self._job.before_reduce(group)
        group.take_pending()
        full = super().allocate(size, dtype=dtype, device=device)
        if group.layout.process_group is None:
            if group.adds:
                self._input = full
            else:
                self._job.reduces_alone(group, full)
        group.next_output = numel // group.ranks
        return full

    def _add_alone(self) -> None:
        """A single rank's FSDP2 has written the gradients, and is about to copy them without calling this."""
        full, self._input = self._input, None
        if full is not None:
            self._job.add(self._group, full)
            full.zero_()

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        if op is not _SUM and op != _SUM:
            raise InternalError(f'FSDP group "{self._group.name}" reduces by {op}, not by a plain sum')
        if self._group.layout.process_group is None:  # until torch 2.10 a single rank reduces, too
            output_tensor.copy_(input_tensor)
            return None
        self._job.add(self._group, input_tensor)
        self._group.streams.added()
        output_tensor.zero_()
        return None


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.device


def _part(whole: torch.Tensor, offset: int, shape: torch.Size) -> torch.Tensor:
    return whole[offset : offset + shape.numel()].view(shape)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits, for comparisons in which a NaN equals itself."""
    return tensor.view(_BITS[tensor.dtype.itemsize])
