# SPDX-License-Identifier: Apache-2.0
"""A job's memory besides FSDP2's: none by default, by copies its slices and the sums of gradients in f32; and the
staging of one group."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import dist, run_torch_ranks, torch

from libodc.torch import fsdp2

nn = torch.nn
fsdp = pytest.importorskip("torch.distributed.fsdp")
fully_shard, MixedPrecisionPolicy = fsdp.fully_shard, fsdp.MixedPrecisionPolicy

LAYERS, WIDTH = 6, 1024
GROUP = 4 * (WIDTH * WIDTH + WIDTH)  # bytes of one group's parameters, f32


def anonymous() -> int:
    """Private bytes of this process: allocated by FSDP2 and the job. Slices are shared memory."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class Peak:
    def __init__(self) -> None:
        self.bytes = 0

    def look(self, *_: Any) -> None:
        self.bytes = max(self.bytes, anonymous())


def train(rank: int, size: int, options: dict[str, Any] | None, gathered: Any = torch.float32) -> tuple[int, int]:
    """The peak of this process's own memory over three steps, and the bytes in slices. `options`: of attach."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    job = None if options is None else fsdp2.attach(model, optimizer, timeout=60, **options)
    peak = Peak()
    gc.collect()
    for layer in model:
        layer.register_forward_hook(peak.look)
        layer.register_full_backward_hook(peak.look)
    for _ in range(3):
        for _ in range(2):
            model(torch.ones(2, WIDTH)).sum().backward()
            peak.look()
        if job is not None:
            job.sync_gradients()
        peak.look()
        optimizer.step()
        peak.look()
        optimizer.zero_grad()
    slices = 0 if job is None else job.context.stats().slice_bytes
    dist.barrier()
    if job is not None:
        job.close()
    return peak.bytes, slices


def count(rank: int, size: int) -> None:
    # FSDP2 without and with the job in one process: what the first leaves is free for the second.
    plain, _ = train(rank, size, None)
    gc.collect()
    again, _ = train(rank, size, None)
    gc.collect()
    ours, slices = train(rank, size, {"parameters": "copy", "gradients": "copy"})
    gc.collect()
    shared, _ = train(rank, size, {})
    own = LAYERS * GROUP // size
    assert slices <= 2 * own + LAYERS * 2 * 64, (slices, own)
    noise = max(again - plain, 0) + (4 << 20)
    print(f"peak {plain >> 20}, again {again >> 20}, by copies {ours >> 20} MiB beside {slices >> 20} MiB of slices")
    assert ours - again <= GROUP + noise
    # Nothing is there twice but, in a backward, the gradients of zeros that FSDP2 makes for one group.
    print(f"peak {shared >> 20} MiB beside slices in which parameters and gradients live")
    assert shared + slices - again <= GROUP + noise
    gc.collect()
    plain, _ = train(rank, size, None, torch.bfloat16)
    gc.collect()
    shared, slices = train(rank, size, {}, torch.bfloat16)
    print(f"bf16 gathers: peak {plain >> 20}, over ODC {shared >> 20} MiB beside {slices >> 20} MiB of slices")
    assert slices <= own + own // 2 + LAYERS * 2 * 64, (slices, own)
    assert shared + slices - plain <= own // 2 + GROUP + noise  # the slices in bf16


def inner() -> None:
    run_torch_ranks(2, count, seconds=380)  # six trainings, in which each larger allocation is a mapping


def test_memory_beside_fsdp2() -> None:
    # Without a cache of freed memory, so that what is counted is what is in use.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    code = "import test_fsdp2_memory; test_fsdp2_memory.inner()"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
