# SPDX-License-Identifier: Apache-2.0
"""Lets a rank of `run_ranks` join as the examples' ranks do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from group import process_group
from torch.distributed.device_mesh import DeviceMesh

import libodc


@contextmanager
def joined(rank: int, size: int, job: str) -> Iterator[tuple[libodc.Context, DeviceMesh]]:
    os.environ.update(ODC_RANK=str(rank), ODC_SIZE=str(size), ODC_JOB=job)
    with libodc.init(timeout=60) as context, process_group(context) as mesh:
        yield context, mesh
