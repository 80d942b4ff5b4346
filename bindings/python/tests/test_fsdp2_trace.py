# SPDX-License-Identifier: Apache-2.0
"""A traced training job: all ranks' calls in one file, and training goes on after it."""

import json
from pathlib import Path

import pytest
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
nn = torch.nn
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard


def traced(rank: int, size: int, folder: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(job: fsdp2.Job, microbatches: int) -> None:
        for _ in range(microbatches):
            model(torch.ones(2, 4)).sum().backward()
        job.sync_gradients(divisor=1.0)
        optimizer.step()
        optimizer.zero_grad()

    with fsdp2.attach(model, optimizer, timeout=60) as job:
        train(job, 1)
        with job.trace(folder) as trace:
            for _ in range(2):
                with trace.span("a minibatch"):
                    train(job, 1 + rank)
        train(job, 1)
        with pytest.raises(libodc.PhaseError, match="would lose them"), job.trace(f"{folder}/other{rank}"):
            model(torch.ones(2, 4)).sum().backward()
        train(job, 0)


@pytest.mark.filterwarnings("ignore:libodc.trace")
def test_a_job_is_traced(tmp_path: Path) -> None:
    run_torch_ranks(3, traced, str(tmp_path))
    events = [one for one in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if one["ph"] == "X"]
    for rank in range(3):
        mine = [one for one in events if one["pid"] == rank + 1]
        counts = {name: sum(one["name"] == name for one in mine) for name in ("compute", "step", "a minibatch", "sync")}
        assert counts == {"compute": 3, "step": 3, "a minibatch": 2, "sync": 3}, counts
        assert sum("gather parameters of 0" in one["name"] for one in mine) >= 2 * (1 + rank)
        additions = [one for one in mine if one["cat"] == "scatter_add" and "gradients of" in one["name"]]
        assert len(additions) == 2 * 2 * (1 + rank)  # minibatches, groups, microbatches
    assert (tmp_path / "timeline.png").stat().st_size > 5000
