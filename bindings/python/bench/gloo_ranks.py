# SPDX-License-Identifier: Apache-2.0
"""The ranks of a benchmark that `odc run` has started, as a process group."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

import libodc


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """This rank and the number of ranks, with gloo and one thread each."""
    with libodc.init() as context:
        rank, size, job = context.rank, context.size, os.environ.get("ODC_JOB", str(os.getppid()))
    store = Path(tempfile.gettempdir()) / f"odc-bench-{job}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    yield rank, size
    dist.barrier()
    dist.destroy_process_group()
    store.unlink(missing_ok=True)
