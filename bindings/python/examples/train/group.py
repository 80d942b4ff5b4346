# SPDX-License-Identifier: Apache-2.0
"""torch's process group for the ranks of a job, with any launcher: gloo, over the NICs that libodc chose, and NCCL for
GPUs if it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface

from schedule import WAIT_SECONDS
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import libodc

_LOOPBACK = "lo"
_DEVICES = ("InfiniBand", "RoCE", "EFA", "Slingshot", "Omni-Path")
_WORDS = 8  # of 16 bits, in an address


def _interface(context: libodc.Context) -> tuple[str, IPv4Address | IPv6Address]:
    """The interface by which this rank reaches other hosts, or loopback, and its address. Gloo does not use RDMA
    devices."""
    nics = [nic for nic in libodc.topology()["nics"] if nic["networks"] and nic["kind"] not in _DEVICES]
    routes = (context.route(rank) for rank in range(context.size))
    chosen = next((route.nic for route in routes if route.nic), _LOOPBACK)
    usable = [nic for nic in nics if nic["name"] == chosen] or [nic for nic in nics if "why_not" not in nic]
    if not usable:
        raise RuntimeError(f"gloo has no interface: libodc uses {chosen}, and no other has an address")
    addresses = [ip_interface(network).ip for network in usable[0]["networks"]]
    return usable[0]["name"], min(addresses, key=lambda address: (address.is_link_local, address.version))


def _tell(context: libodc.Context, address: IPv4Address | IPv6Address | None, port: int) -> tuple[str, int]:
    """Collective. The value of the one rank that has an address."""
    packed = address.packed if address is not None else b""
    words = [packed[2 * i] << 8 | packed[2 * i + 1] for i in range(len(packed) // 2)]
    told = [int(value) for value in context.all_reduce([port, len(packed), *words, *[0] * (_WORDS - len(words))])]
    told_packed = b"".join(word.to_bytes(2, "big") for word in told[2:])[: told[1]]
    return str(ip_address(told_packed)), told[0]


@contextmanager
def process_group(context: libodc.Context, device: str = "cpu", backend: str = "gloo") -> Iterator[DeviceMesh]:
    """Collective. Yields a one-dimensional mesh of all ranks, on `device`s of theirs.

    The system chooses the store's port and rank 0 tells it through `context`, so jobs never share a port and nothing
    is left behind.
    """
    interface, mine = _interface(context)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # not the address to which the host's name resolves
    timeout = timedelta(seconds=WAIT_SECONDS)
    rank, size = context.rank, context.size
    if rank == 0:
        store = TCPStore(str(mine), 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        _tell(context, mine, store.port)
    else:
        address, port = _tell(context, None, 0)
        store = TCPStore(address, port, size, is_master=False, timeout=timeout)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield init_device_mesh(device, (size,))
        context.sync()  # rank 0's store must outlive the others' use of it
    finally:
        distributed.destroy_process_group()
