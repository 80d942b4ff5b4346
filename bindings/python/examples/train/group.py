# SPDX-License-Identifier: Apache-2.0
"""torch's process group of gloo among the ranks of a job on one host, whatever launched them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from schedule import WAIT_SECONDS
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import odc

_LOOPBACK = "127.0.0.1"


@contextmanager
def process_group(context: odc.Context) -> Iterator[DeviceMesh]:
    """Collective. Yields a one-dimensional mesh of all ranks.

    The system chooses the store's port and rank 0 tells it through `context`, so jobs never share a port and nothing
    is left behind.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not whatever the host's name resolves to
    timeout = timedelta(seconds=WAIT_SECONDS)
    rank, size = context.rank, context.size
    store = None
    if rank == 0:
        store = TCPStore(_LOOPBACK, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    port = int(context.all_reduce([store.port if store is not None else 0])[0])
    if store is None:
        store = TCPStore(_LOOPBACK, port, size, is_master=False, timeout=timeout)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield init_device_mesh("cpu", (size,))
        context.sync()  # rank 0's store must outlive the others' use of it
    finally:
        distributed.destroy_process_group()
