# SPDX-License-Identifier: Apache-2.0
"""Views and buffers as torch tensors, bf16 too."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import run_ranks

import libodc
from libodc import Type

torch = pytest.importorskip("torch", reason="torch is not installed")


def tensors(rank: int, size: int, job: str) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    shard = context.register("w", 100, Type.BF16, Type.BF16)
    mine = torch.from_dlpack(shard.slice.parameters)
    assert mine.dtype == torch.bfloat16 and mine.shape == (50,)
    mine.copy_(torch.arange(50) + 50 * rank)
    context.publish()
    full = torch.empty(100, dtype=torch.bfloat16)
    shard.gather(full)
    assert torch.equal(full, torch.arange(100).to(torch.bfloat16))
    shard.scatter_add(torch.full((100,), 0.5, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"torch\.float32, the shard BF16"):
        shard.gather(torch.empty(100))
    with pytest.raises(ValueError, match=r'^the buffer for shard "w" is not contiguous: give one that is$'):
        shard.gather(torch.empty(10, 10, dtype=torch.bfloat16).t())
    with pytest.raises(ValueError, match="meta"):
        shard.gather(torch.empty(100, dtype=torch.bfloat16, device="meta"))
    context.sync()
    sums = torch.from_dlpack(shard.slice.gradients)
    assert sums.dtype == torch.float32 and torch.equal(sums, torch.full((50,), 0.5 * size))
    context.close()
    del context, shard
    gc.collect()
    assert mine[1] == 50 * rank + 1  # tensors keep the memory
    del mine, sums
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:odc") == 0


def test_tensors() -> None:
    run_ranks(2, tensors)


# The cycle is collected, and the tensor freed, only after the modules.
OUTLIVES = """
import os, sys, torch, libodc
context = libodc.init(rank=0, size=1, job=f"outlives-{os.getpid()}")
cycle = [torch.from_dlpack(context.register("w", 10).slice.parameters)]
cycle.append(cycle)
sys.outlives = cycle
"""


def test_a_tensor_may_outlive_the_modules() -> None:
    ended = subprocess.run([sys.executable, "-c", OUTLIVES], capture_output=True, text=True, timeout=60, cwd="/")
    assert (ended.returncode, ended.stderr) == (0, "")
