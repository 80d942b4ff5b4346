# SPDX-License-Identifier: Apache-2.0
"""From a model that FSDP2 has sharded to a job that trains it over ODC."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..._abi import Memory
from ..._arguments import c_float
from ..._log import is_unconfigured
from ...context import Context, init
from ...errors import ArgumentError, JobError, MismatchError, NoMemoryError, UnsupportedError
from ...route import Route
from .advice import by_reason
from .crosscheck import Crosscheck
from .extension import ExtensionGroup
from .gradient_views import Gradients
from .group import Add, Gather, Group, Living
from .homes import SEEN, SHARED, Parameters
from .job import Job
from .layout import Layout, probe
from .optimizers import check_owners, unwrapped
from .overlap import overlap_of
from .streams import Streams, streams_of
from .torch_state import FsdpGroup, check_torch, fsdp_groups, has_post_accumulate_hook, has_tensor_hook, reset

logger = logging.getLogger("libodc")


def attach(
    model: nn.Module,
    optimizer: Any = None,
    *,
    timeout: float | timedelta = 1800.0,
    check: bool = False,
    sums: Literal["exact"] | None = None,
    exact_state: Mapping[str, float] | None = None,
    parameters: Parameters | None = None,
    gradients: Gradients | None = None,
) -> Job:
    """Trains `model`, which fully_shard has wrapped, over On-Demand Communication, until the job ends.
    Collective over the ranks of its mesh. Call it when parameters are materialised and loaded. Slices are where FSDP2
    computes: in host memory, or in a GPU's memory, where the streams of FSDP2 and of the caller order all work.

    `optimizer`: one, several, wrapped ones, or None for a model that is only read (reference, teacher, reward model).
    `timeout`: seconds or a timedelta until a wait raises; the logger "libodc" names the ranks waited for much earlier.
    `check`: also computes the first minibatch's gradients as plain FSDP2 does, by collectives, and compares each .grad.
    `sums`: "exact" gives gradients whose bits depend neither on the order of additions nor, with the same microbatches,
    on which ranks ran them and how many there are; f32, bf16 and f16. None: by arrival.
    `parameters`: with "slice" each one whose type is the gathered one lives in the slice that others read, which takes
    no memory of its own and saves the copy; edits outside of a step then belong within Job.editing(). With "copy" each
    publish copies them into the slices. None: "slice" in host memory, "copy" on a GPU.
    `gradients`: with "view" each .grad of the sums' type is the sums themselves from sync to step, which takes no
    memory of its own and leaves a .grad of None after the step, as zero_grad() does. With "copy" .grad stays until it
    is cleared. None: "view" in host memory, "copy" on a GPU.
    `exact_state`: of Job.exact_state() in the job whose checkpoint has been loaded.

    Raises UnsupportedError, which says what to do instead, and ArgumentError for arguments that contradict each other.
    """
    if sums not in (None, "exact"):
        raise ArgumentError(f'sums is {sums!r}: "exact", or None for sums in the order of arrival')
    if parameters not in (None, "slice", "copy"):
        raise ArgumentError(f'parameters is {parameters!r}: "slice" or "copy"')
    if gradients not in (None, "view", "copy"):
        raise ArgumentError(f'gradients is {gradients!r}: "view" or "copy"')
    if exact_state and sums is None:
        raise ArgumentError('exact_state is of a job with exact sums: attach(sums="exact")')
    optimizers = unwrapped(optimizer)
    groups = _find_groups(model)
    reset(groups)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    streams = streams_of(_one_device(groups))
    _refuse(model, groups, names)
    owned = {id(p): names[id(p)] for p in model.parameters() if p.requires_grad} if optimizers else {}
    unsharded = _unsharded(model, groups) if optimizers else []
    unowned = check_owners(optimizers, owned)
    before = [group.settings for group in groups]
    context, job = None, None
    try:
        layouts = [probe(group, names) for group in groups]
        process_group = _one_process_group(groups, layouts)
        ranks = 1 if process_group is None else process_group.size()
        attached = [
            (ExtensionGroup if group.gathers_by_extension else Group)(
                group,
                layout,
                was,
                ranks,
                layout.trainable if optimizers else [],
                streams,
                sums,
                _largest(exact_state, group.name) if layout.trainable and optimizers else 0.0,
            )
            for group, layout, was in zip(groups, layouts, before, strict=True)
        ]
        tied = _check_tied(attached)
        _compare_models(attached, process_group)
        in_gpu_memory = streams.memory is Memory.GPU and any(group.descriptions() for group in attached)
        context = _join(process_group, timeout, streams.device if in_gpu_memory else None)
        routes = [context.route(rank, streams.memory) for rank in range(ranks)]
        crosscheck = Crosscheck() if check else None
        overlap = overlap_of(routes, streams.memory)
        job = Job(model, attached, context, optimizers, streams, overlap, crosscheck)
        in_place = streams.memory is Memory.HOST  # the default; not yet run on a GPU
        live = Living(
            parameters or ("slice" if in_place else "copy"), gradients or ("view" if in_place else "copy"), tied
        )
        _register(attached, context, job, streams, live)
        job._begin()
    except BaseException as error:
        with ExitStack() as stack:  # all of it, even if some fails
            for group, was in zip(groups, before, strict=True):
                stack.callback(group.apply, was)
            if job is not None:
                stack.callback(job.remove)
            elif context is not None:
                stack.callback(context.close)
            if context is not None and not isinstance(error, JobError):
                stack.callback(context.abort, f"attach raised {type(error).__name__}: {error}")
        raise
    _tell(attached, context.rank, routes, unowned, unsharded)
    return job


def _largest(exact_state: Mapping[str, float] | None, name: str) -> float:
    if exact_state is None:
        return 0.0
    if not isinstance(exact_state, Mapping):
        raise ArgumentError(f"exact_state is {exact_state!r}, must be what Job.exact_state() returned")
    if not exact_state:
        return 0.0
    if name not in exact_state:
        raise ArgumentError(
            f'exact_state has nothing of FSDP group "{name}"; it is of {", ".join(sorted(exact_state))}'
        )
    return c_float(f'exact_state["{name}"]', exact_state[name])


@dataclass(frozen=True)
class _Shape:
    """A parameter's description, which must be equal on all ranks."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    def __str__(self) -> str:
        return f'"{self.name}" {self.dtype} {list(self.shape)}{"" if self.trainable else " (frozen)"}'


def _find_groups(model: nn.Module) -> list[FsdpGroup]:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model is {type(model).__name__}, must be a torch.nn.Module")
    check_torch(model)
    found = []
    for name, groups in fsdp_groups(model):
        if len(groups) > 1:
            raise UnsupportedError(
                f'FSDP module "{name}" has {len(groups)} parameter groups (a shard_placement_fn with several meshes): '
                "give each mesh a module of its own"
            )
        found += groups
    if not found:
        raise ArgumentError("the model is not wrapped: call torch.distributed.fsdp.fully_shard before attach")
    return found


def _one_device(groups: list[FsdpGroup]) -> torch.device:
    first = groups[0]
    for group in groups:
        if group.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(
                f'FSDP group "{group.name}" computes on {group.device}; attach needs host memory or that of CUDA GPUs'
            )
        if group.device != first.device:
            raise UnsupportedError(
                f'FSDP group "{first.name}" computes on {first.device}, "{group.name}" on {group.device}; attach needs '
                "one device on each rank"
            )
    return first.device


def _refuse(model: nn.Module, groups: list[FsdpGroup], names: dict[int, str]) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ArgumentError(f'parameter "{name}" is on meta: materialise (to_empty) and load the model first')
        if parameter.is_complex():
            raise UnsupportedError(f'parameter "{name}" is complex; f32, f64, bf16 and f16 can be trained')
        if parameter.device.type != "cpu" and parameter.device != groups[0].device:
            raise UnsupportedError(
                f'parameter "{name}" is on {parameter.device}, and FSDP2 computes on {groups[0].device}: call '
                "torch.cuda.set_device and move the model before fully_shard"
            )
    for group in groups:
        why = _why_not(group)
        if why is not None:
            raise UnsupportedError(f'FSDP group "{group.name}" {why}')
        for attribute in group.attributes:
            if has_post_accumulate_hook(attribute.get()):
                raise UnsupportedError(
                    f'parameter "{names.get(id(attribute.get()), attribute.name)}" has a post-accumulate-grad hook (an '
                    "optimizer in backward?): it would see no gradient before sync_gradients(); step after the sync"
                )


def _unsharded(model: nn.Module, groups: list[FsdpGroup]) -> list[str]:
    """The names of trainable parameters that FSDP2 does not manage: neither it nor ODC reduces their gradients. Refuses
    those that may reduce them by a hook: of their own, or of DistributedDataParallel, whose hooks torch does not list.
    """
    managed = {id(attribute.get()) for group in groups for attribute in group.attributes}
    left = {name: one for name, one in model.named_parameters() if one.requires_grad and id(one) not in managed}
    in_ddp = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    reduced = {id(parameter) for module in in_ddp for parameter in module.parameters()}
    for name, parameter in left.items():
        hook = "the hooks of DistributedDataParallel" if id(parameter) in reduced else _hook(parameter)
        if hook is not None:
            raise UnsupportedError(
                f'parameter "{name}" is not sharded by FSDP2 and has {hook}: a collective in it '
                "hangs when ranks run different numbers of backwards. Add the parameter before fully_shard (PEFT: "
                "create the adapters first, then let Accelerate's FSDP2 plugin shard the model), or remove the hook "
                "and reduce the gradient after sync_gradients()"
            )
    return list(left)


def _hook(parameter: torch.Tensor) -> str | None:
    if has_post_accumulate_hook(parameter):
        return "a post-accumulate-grad hook"
    return "a hook (Tensor.register_hook)" if has_tensor_hook(parameter) else None


def _why_not(group: FsdpGroup) -> str | None:
    settings = group.settings
    if isinstance(settings.all_gather, Gather) or isinstance(settings.reduce_scatter, Add):
        return "is attached already: remove() its job first"
    if group.replicated:
        return "is replicated (HSDP or replicate()): shard over all ranks of a 1-D mesh instead"
    if group.reshards_to_fewer_ranks:
        return "reshards to fewer ranks (reshard_after_forward=<int>): use True or False"
    if group.all_reduce_hook is not None:
        return "has an all-reduce hook, which would run in each backward: remove it"
    if (comm := group.foreign_comm) is not None:
        return (
            f"communicates through {type(comm).__name__} (set_symm_mem_for_comm, "
            "set_allocate_memory_from_process_group_for_comm, set_custom_*), whose place ODC must take: undo it"
        )
    return None


def _one_process_group(groups: list[FsdpGroup], layouts: list[Layout]) -> dist.ProcessGroup | None:
    first = layouts[0].process_group
    ranks = [] if first is None else dist.get_process_group_ranks(first)
    for group, layout in zip(groups, layouts, strict=True):
        other = layout.process_group
        theirs = [] if other is None else dist.get_process_group_ranks(other)
        if theirs != ranks:
            raise UnsupportedError(
                f'FSDP groups are sharded over different ranks: "{groups[0].name}" over {ranks}, "{group.name}" over '
                f"{theirs}; attach needs one mesh"
            )
    return first


def _check_tied(groups: list[Group]) -> set[int]:
    """The ids of parameters that are in several groups. On a single rank FSDP2 adds the gradients of all groups before
    they are divided."""
    first: dict[int, Group] = {}
    tied = set()
    for group in groups:
        for entry in group.layout.entries:
            other = first.setdefault(id(entry.parameter), group)
            if other is not group:
                tied.add(id(entry.parameter))
            if entry.trainable and group.trainable and other.divisor != group.divisor:
                raise UnsupportedError(
                    f'parameter "{entry.name}" is in FSDP groups "{other.name}" and "{group.name}", whose gradients '
                    f"are divided by {other.divisor:g} and {group.divisor:g}: call set_gradient_divide_factor with one "
                    "factor for both"
                )
    return tied


def _compare_models(groups: list[Group], process_group: dist.ProcessGroup | None) -> None:
    if process_group is None:
        return
    mine = [
        (
            group.name,
            [_Shape(e.name, tuple(e.shape), str(e.unsharded.dtype), e.trainable) for e in group.layout.entries],
        )
        for group in groups
    ]
    divisors = [group.divisor for group in groups]
    both: list[Any] = [None] * process_group.size()
    dist.all_gather_object(both, (mine, divisors), group=process_group)
    everyone = [model for model, _ in both]
    for rank, (other, theirs_divisors) in enumerate(both):
        if [name for name, _ in other] != [name for name, _ in everyone[0]]:
            raise MismatchError(
                f"ranks attach different models: rank 0 has {len(everyone[0])} FSDP groups "
                f"({', '.join(name for name, _ in everyone[0])}), rank {rank} {len(other)} "
                f"({', '.join(name for name, _ in other)})"
            )
        for (name, theirs), (_, expected) in zip(other, everyone[0], strict=True):
            if theirs != expected:
                raise MismatchError(_difference(name, rank, theirs, expected))
        if theirs_divisors != both[0][1]:
            raise MismatchError(
                f"ranks divide by different factors (set_gradient_divide_factor): rank 0 by {both[0][1]}, rank {rank} "
                f"by {theirs_divisors}"
            )


def _difference(group: str, rank: int, theirs: Sequence[_Shape], expected: Sequence[_Shape]) -> str:
    for one, other in zip(theirs, expected, strict=False):
        if one != other:
            return f'ranks attach different models: in FSDP group "{group}" rank 0 has {other}, rank {rank} {one}'
    return (
        f'ranks attach different models: FSDP group "{group}" has {len(expected)} parameters on rank 0, {len(theirs)} '
        f"on rank {rank}"
    )


def _join(process_group: dist.ProcessGroup | None, timeout: float | timedelta, device: torch.device | None) -> Context:
    """A context of its own for each attach, so that models advance independently."""

    def all_gather(mine: bytes) -> list[bytes]:
        everyone: list[Any] = [None] * process_group.size()  # type: ignore[union-attr]
        dist.all_gather_object(everyone, mine, group=process_group)
        return everyone

    if process_group is None:
        return init(rank=0, size=1, all_gather=lambda mine: [mine], timeout=timeout, device=device)
    return init(
        rank=dist.get_rank(process_group),
        size=process_group.size(),
        all_gather=all_gather,
        timeout=timeout,
        device=device,
    )


def _register(groups: list[Group], context: Context, job: Job, streams: Streams, live: Living) -> None:
    per_group = [group.descriptions() for group in groups]
    streams.make_room()
    try:
        all_shards = [one for several in per_group for one in several]
        shards = iter(context.register_all(all_shards) if all_shards else [])
    except NoMemoryError as error:
        raise NoMemoryError("; ".join(filter(None, (str(error), streams.held_by_torch())))) from None
    for group, several in zip(groups, per_group, strict=True):
        group.install([next(shards) for _ in several], job._hooks, live)


def _warn_of_staging(routes: list[Route]) -> None:
    staged = [rank for rank, route in enumerate(routes) if route.access == "staged" and not route.between_hosts]
    if staged:
        logger.warning(
            "odc: %d ranks of this host are reached through host memory, which is slow; rank %d by %s",
            len(staged),
            staged[0],
            routes[staged[0]],
        )


def _tell(groups: list[Group], rank: int, routes: list[Route], unowned: list[str], unsharded: list[str]) -> None:
    if rank != 0:
        return
    if unowned:
        logger.warning(
            "odc: no attached optimizer owns %d trainable parameters (%s…)", len(unowned), ", ".join(unowned[:3])
        )
    if unsharded:
        logger.warning(
            "odc: %d trainable parameters are not sharded by FSDP2 (%s…), and sync_gradients() does not reduce their "
            "gradients: do so after it, or add the parameters before fully_shard",
            len(unsharded),
            ", ".join(unsharded[:3]),
        )
    _warn_of_staging(routes)
    _tell_of_copies(groups)
    slices = sum(group.parameter_bytes + group.sum_bytes for group in groups)
    digits = 2 if slices < 10 * 2**20 else 1
    per_rank = (
        f"{slices / 2**20:.{digits}f} MiB of slices per rank ({_memory(groups, digits) or 'a single rank needs none'})"
    )
    if is_unconfigured():
        print(f"odc: attach: {len(groups)} groups over {len(routes)} ranks, {per_rank}", file=sys.stderr)
    types = sorted({str(group.layout.dtype).removeprefix("torch.") for group in groups})
    gradients = sorted({str(g.layout.gradient_dtype).removeprefix("torch.") for g in groups if g.trainable})
    logger.info(
        "libodc.torch.fsdp2: %d groups over %d ranks, parameters gathered as %s, gradients added as %s, divided by %s, "
        "%s; rank %d is reached by %s",
        len(groups),
        len(routes),
        "/".join(types),
        "/".join(gradients) or "nothing (read only)",
        "/".join(f"{divisor:g}" for divisor in sorted({group.divisor for group in groups})),
        per_rank,
        len(routes) - 1,
        routes[-1],
    )


def _memory(groups: list[Group], digits: int) -> str:
    """What a rank's memory is for. Parameters that live in slices and sums that are .grad are not beside FSDP2's."""
    living = sum(group.homes.nbytes for group in groups)
    as_gradients = sum(group.views.nbytes for group in groups)
    kinds = {
        "of parameters that live there": living,
        "of copies of parameters": sum(group.parameter_bytes for group in groups) - living,
        "of sums that are .grad": as_gradients,
        "of sums beside .grad": sum(group.sum_bytes for group in groups) - as_gradients,
    }
    return ", ".join(f"{size / 2**20:.{digits}f} {kind}" for kind, size in kinds.items() if size > 0)


def _tell_of_copies(groups: list[Group]) -> None:
    """A warning, where the program can do something about it."""
    why = {name: why for group in groups for name, why in group.homes.reasons()}
    for level, avoidable in ((logging.INFO, False), (logging.WARNING, True)):
        copied = {name: one for name, one in why.items() if (one in (SEEN, SHARED)) is avoidable}
        if copied:
            logger.log(
                level,
                "odc: %d parameters cannot live in their slices and are copied at each publish: %s",
                len(copied),
                by_reason(copied),
            )
