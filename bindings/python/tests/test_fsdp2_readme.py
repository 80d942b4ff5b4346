# SPDX-License-Identifier: Apache-2.0
"""The README's example of FSDP2 runs as it is printed, around a model and samples of the reader's own; a job shows what
the pages describe, and nothing else."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch_ranks import run_torch_ranks, torch

import libodc

nn = torch.nn
PACKAGE = Path(__file__).parents[1]
PAGES = [PACKAGE / "README.md", PACKAGE / "MIGRATING.md", PACKAGE.parents[1] / "docs" / "fsdp2.md"]
CODE = re.search(
    r"```python\n(from torch\.distributed\.fsdp import fully_shard\n.*?)```",
    PAGES[0].read_text(),
    re.S,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.last = nn.Linear(5, 1)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.last(x)


def example(rank: int, size: int) -> None:
    losses = []

    def loss_sum(model: Any, microbatch: Any) -> Any:
        loss = (model(microbatch.x) - 1).square().sum()
        losses.append(loss.item() / microbatch.tokens)
        return loss

    def microbatch(tokens: int) -> Any:
        return SimpleNamespace(x=torch.ones(tokens, 5), tokens=tokens)

    names = {
        "torch": torch,
        "model": Model(),
        "mesh": torch.distributed.device_mesh.init_device_mesh("cpu", (size,)),
        "sampler": [[microbatch(tokens) for tokens in range(1, 2 + (rank + step) % 3)] for step in range(20)],
        "loss_sum": loss_sum,
    }
    assert CODE is not None
    exec(CODE[1], names)
    assert losses[-1] < 0.95 * losses[0]
    job = names["job"]
    with pytest.raises(libodc.PhaseError, match="closed or removed"):
        job.publish()
    described = {name for page in PAGES for name in re.findall(r"\b(?:job|reading)\.([a-z]\w*)", page.read_text())}
    assert {name for name in dir(job) if not name.startswith("_")} == described


def test_the_fsdp2_example_runs() -> None:
    run_torch_ranks(3, example)
