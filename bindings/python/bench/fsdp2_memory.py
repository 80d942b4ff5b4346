# SPDX-License-Identifier: Apache-2.0
"""The memory of a rank that trains with FSDP2, and over ODC beside it, in MiB: proportional set sizes of all ranks,
added, so that shared memory counts once, divided by the ranks:

    odc run -n 2 build/python/bin/python bindings/python/bench/fsdp2_memory.py

16 layers of 2048² with biases (67 M parameters) and AdamW. "held" is the most of: after the backward, after
sync_gradients(), after the step; without what is freed between them.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from libodc.torch import fsdp2

LAYERS, WIDTH = 16, 2048

WAYS: list[tuple[str, dict[str, Any] | None]] = [
    ("plain FSDP2", None),
    ("by default", {}),
    ('gradients="copy"', {"gradients": "copy"}),
    ('parameters="copy", gradients="copy"', {"parameters": "copy", "gradients": "copy"}),
]


def used() -> float:
    """MiB of this process, of shared pages its part."""
    gc.collect()
    dist.barrier()
    found = re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    total = torch.tensor(sum(map(float, found)) / 1024)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def train(options: dict[str, Any] | None, policy: MixedPrecisionPolicy) -> list[float]:
    """MiB after the backward, the sync and the step of the second minibatch, above those before the model."""
    before = used()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    job = None if options is None else fsdp2.attach(model, optimizer, **options)
    for _ in range(2):
        seen = []
        model(torch.ones(2, WIDTH)).sum().backward()
        seen.append(used() - before)
        if job is not None:
            job.sync_gradients()
        seen.append(used() - before)
        optimizer.step()
        seen.append(used() - before)
        optimizer.zero_grad()
    if job is not None:
        job.close()
    return seen


def main() -> None:
    with process_group() as (rank, _):
        for name, policy in (
            ("f32", MixedPrecisionPolicy()),
            ("bf16 gathers", MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
        ):
            train(None, policy)  # whatever is allocated once
            plain: list[float] = []
            for way, options in WAYS:
                seen = train(options, policy)
                plain = plain or seen
                if rank == 0:
                    held = max(seen)
                    print(
                        f"{name}, {way}: {seen[0]:.0f} after the backward, {seen[1]:.0f} after the sync, {seen[2]:.0f} "
                        f"after the step; held {held:.1f}, beside plain {held - max(plain):+.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    # Freed memory goes back, so that what is counted is what is in use.
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
