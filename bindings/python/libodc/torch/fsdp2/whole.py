# SPDX-License-Identifier: Apache-2.0
"""Parameters of whole groups: kept unsharded for a while, or copied from another model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from ...context import Context
from ...errors import ArgumentError
from .group import Group
from .layout import Entry


@contextmanager
def kept_unsharded(groups: Sequence[Group]) -> Iterator[None]:
    with ExitStack() as stack:
        for group in groups:
            stack.enter_context(group.fsdp.kept_unsharded())
        with torch.no_grad():
            for group in groups:
                group.fsdp.module.unshard()
        yield


def check_same_ranks(source: Context, target: Context) -> None:
    if (source.rank, source.size) != (target.rank, target.size):
        raise ArgumentError(
            f"this is rank {target.rank} of {target.size}, and rank {source.rank} of {source.size} of the other job: "
            "refresh from a job of the same ranks"
        )


def copy_parameters(source: Sequence[Group], target: Sequence[Group]) -> None:
    """Copies this rank's shards."""
    _check_alike(source, target)
    with torch.no_grad():
        for a, b in zip(source, target, strict=True):
            into, values = [one.local for one in b.layout.entries], [one.local for one in a.layout.entries]
            torch._foreach_copy_(into, values)


def _check_alike(source: Sequence[Group], target: Sequence[Group]) -> None:
    theirs, mine = ([entry for group in groups for entry in group.layout.entries] for groups in (source, target))
    different = next((pair for pair in zip(theirs, mine, strict=False) if _about(pair[0]) != _about(pair[1])), None)
    if different is not None:
        shown = [f'"{one.name}" {list(one.shape)}, sharded along dimension {one.dim}' for one in different]
        raise ArgumentError(
            f"the models differ: the other job's has parameter {shown[0]}, where this job's has {shown[1]}; "
            "refresh from a job of the same model, wrapped the same"
        )
    if len(theirs) != len(mine) or [group.name for group in source] != [group.name for group in target]:
        raise ArgumentError(
            f"the models differ: the other job's has {len(theirs)} parameters in {len(source)} FSDP groups, this job's "
            f"{len(mine)} in {len(target)}; refresh from a job of the same model, wrapped the same"
        )


def _about(entry: Entry) -> tuple[object, ...]:
    return entry.name, entry.shape, entry.dim
