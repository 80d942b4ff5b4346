# SPDX-License-Identifier: Apache-2.0
"""The compared arms: a schedule, its transport, and a plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from collective import CollectiveJob
from schedule import WAIT_SECONDS, FsdpJob, Job
from torch import nn

from libodc.torch import fsdp2


@dataclass(frozen=True)
class Arm:
    """`attach` makes the job of a sharded model and its optimizer. `in_step`: all ranks wait for each other in each
    layer."""

    name: str
    policy: str
    in_step: bool
    attach: Callable[[nn.Module, torch.optim.Optimizer], Job]


def _fsdp(model: nn.Module, _: torch.optim.Optimizer) -> Job:
    return FsdpJob(model)


def _collective(model: nn.Module, _: torch.optim.Optimizer) -> Job:
    return CollectiveJob(model, "collective")


def _collective_rows(model: nn.Module, _: torch.optim.Optimizer) -> Job:
    return CollectiveJob(model, "collective rows")


def _odc(model: nn.Module, optimizer: torch.optim.Optimizer) -> Job:
    return fsdp2.attach(model, optimizer, timeout=WAIT_SECONDS)


def _odc_flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> Job:
    before = os.environ.get("ODC_NODE_CACHE")
    os.environ["ODC_NODE_CACHE"] = "off"
    try:
        return _odc(model, optimizer)
    finally:
        del os.environ["ODC_NODE_CACHE"]
        if before is not None:
            os.environ["ODC_NODE_CACHE"] = before


FSDP = Arm("fsdp2 + lb-micro", "lb-micro", True, _fsdp)
COLLECTIVE = Arm("collective + lb-micro", "lb-micro", True, _collective)
COLLECTIVE_ROWS = Arm("collective + sorted-rows", "sorted-rows", True, _collective_rows)
ODC_MICRO = Arm("odc + lb-micro", "lb-micro", False, _odc)
ODC_FLAT = Arm("odc + lb-mini, no node cache", "lb-mini", False, _odc_flat)  # between hosts of several ranks
ODC_MINI = Arm("odc + lb-mini", "lb-mini", False, _odc)
ODC_CLAIMS = Arm("odc + claims", "lb-mini", False, _odc)  # of a ClaimingTrainer
