# SPDX-License-Identifier: Apache-2.0
"""The common set-up of the experiments, and the output of their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from arms import Arm
from dataset import Dataset
from decoder import Packed, pack
from options import Options
from torch.distributed.device_mesh import DeviceMesh
from trainer import Recipe
from workload import CostModel, Workload

import libodc


@dataclass(frozen=True)
class Session:
    options: Options
    dataset: Dataset
    context: libodc.Context
    mesh: DeviceMesh
    hosts: int  # that the ranks are on

    @property
    def cost(self) -> CostModel:
        return CostModel("7b", self.options.budget)

    @property
    def recipe(self) -> Recipe:
        o = self.options
        reduced = {"f32": torch.float32, "bf16": torch.bfloat16}[o.reduce]
        return Recipe(self.dataset.vocabulary, self.dataset.start, o.width, o.blocks, o.rate, o.seed, reduced)

    def workload(self, arms: Iterable[Arm]) -> Workload:
        policies = dict.fromkeys(arm.policy for arm in arms)
        return Workload(self.dataset.training, self.cost, tuple(policies))

    def held_out(self) -> list[Packed]:
        """This rank's part, in as many microbatches as on every other rank."""
        workload = Workload(self.dataset.held_out, self.cost, ())
        plan = workload.divide(range(len(workload.samples)), self.context.size, "lb-micro")
        samples = workload.samples
        return [pack([samples[i] for i in one], self.dataset.start) for one in plan[self.context.rank]]

    def print_lines(self, lines: Iterable[str]) -> None:
        """On rank 0."""
        if self.context.rank == 0:
            print("\n".join(lines), flush=True)

    def write_summary(self, results: Mapping[str, object]) -> None:
        settings = {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(self.options).items()
        }
        summary = {"settings": settings, "ranks": self.context.size, "torch": torch.__version__}
        if self.mesh.device_type == "cuda":
            summary["gpu"] = torch.cuda.get_device_name()
        summary |= {"data": self.dataset.summary(), **results}
        path = self.options.report / "summary.json"
        path.write_text(json.dumps(summary, indent=1) + "\n")
