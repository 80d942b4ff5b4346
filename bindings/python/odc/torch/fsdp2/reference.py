# SPDX-License-Identifier: Apache-2.0
"""attach(check=True): the first minibatch's gradients, reduced by collectives as well, and compared."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

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
        whole = group.spread(full).to(torch.float64)
        kept = self._kept.get(group.name)
        self._kept[group.name] = whole if kept is None else kept.add_(whole)

    def compare(self, groups: list[Group]) -> None:
        """Collective, in the order of the groups."""
        worst = 0.0
        for group in groups:
            process_group = group.layout.process_group
            if process_group is None or not group.trainable:
                continue
            numel = group.layout.gradient_numel
            kept = self._kept.pop(group.name, None)
            if kept is None:
                kept = torch.zeros(numel * group.ranks, dtype=torch.float64)
            dist.all_reduce(kept, group=process_group)
            mine = kept[dist.get_rank(process_group) * numel :][:numel]
            sums = group.sums().to(torch.float64)
            # Sums of many terms in f32 or f64, in another order; a NaN must be one in both.
            bound = 1e-12 if group.sums().dtype == torch.float64 else 1e-5
            scale = float(mine.nan_to_num().abs().max())
            error = float((sums - mine).nan_to_num().abs().max())
            if error > bound * scale or not torch.equal(sums.isnan(), mine.isnan()):
                raise InternalError(
                    f'gradients of FSDP group "{group.name}" differ from a reduction by collectives by {error}; the '
                    f"largest is {scale}"
                )
            worst = max(worst, error / scale if scale else 0.0)
        logger.info("the first minibatch's gradients equal a reduction by collectives to %.1e", worst)
