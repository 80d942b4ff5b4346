# SPDX-License-Identifier: Apache-2.0
"""attach(check=True): the first minibatch's gradients, reduced by collectives as well, and compared."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...errors import InternalError

if TYPE_CHECKING:
    from .group import Group

logger = logging.getLogger("odc")


class Reference:
    """Keeps each rank's whole gradient, so it takes as much memory as the unsharded gradients in f64."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def add(self, group: Group, full: torch.Tensor) -> None:
        whole = group.spread(full).to(torch.float64, copy=True)  # FSDP2 writes there again
        kept = self._kept.get(group.name)
        self._kept[group.name] = whole if kept is None else kept.add_(whole)

    def compare(self, groups: list[Group]) -> None:
        """Collective, in the order of the groups. All ranks raise if one finds a difference."""
        reduced = [group for group in groups if group.layout.process_group is not None and group.trainable]
        if not reduced:
            return
        process_group = reduced[0].layout.process_group
        worst, found = 0.0, ""
        for group in reduced:
            numel = group.layout.gradient_numel
            kept = self._kept.pop(group.name, None)
            if kept is None:
                kept = torch.zeros(numel * group.ranks, dtype=torch.float64, device=group.sums().device)
            dist.all_reduce(kept, group=process_group)
            mine = kept[dist.get_rank(process_group) * numel :][:numel]
            error, scale = self._difference(group, mine)
            # Sums of many terms in f32 or f64, in another order.
            if error > (1e-12 if group.sums().dtype == torch.float64 else 1e-5) * scale:
                found = f'those of FSDP group "{group.name}" by {error}, the largest is {scale}'
            worst = max(worst, error / scale if scale else 0.0)
        everyone: list[Any] = [None] * dist.get_world_size(process_group)
        dist.all_gather_object(everyone, found, group=process_group)
        wrong = [f"on rank {rank} {words}" for rank, words in enumerate(everyone) if words]
        if wrong:
            raise InternalError(f"gradients differ from a reduction by collectives: {'; '.join(wrong)}")
        logger.info("the first minibatch's gradients equal a reduction by collectives to %.1e", worst)

    @staticmethod
    def _difference(group: Group, mine: torch.Tensor) -> tuple[float, float]:
        """The largest, and the largest element. A NaN must be one in both."""
        sums = group.sums().to(torch.float64)
        error = float((sums - mine).nan_to_num().abs().max())
        if not torch.equal(sums.isnan(), mine.isnan()):
            error = float("inf")
        return error, float(mine.nan_to_num().abs().max())
