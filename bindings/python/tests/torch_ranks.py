# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of a torch test as processes with a gloo process group."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed


def _with_gloo(rank: int, size: int, job: str, fn: Callable[..., None], store: str, args: tuple[Any, ...]) -> None:
    if options := os.environ.get("ODC_TEST_ATTACH"):  # defaults for attach: "parameters=copy,gradients=copy"
        from libodc.torch.fsdp2 import attach

        attach.__kwdefaults__.update(option.split("=") for option in options.split(","))  # type: ignore[union-attr]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    fn(rank, size, *args)
    # A late rank must not lose its peers in the middle of a collective.
    dist.barrier()
    dist.destroy_process_group()


def run_torch_ranks(size: int, fn: Callable[..., None], *args: Any, **options: Any) -> None:
    """Runs fn(rank, size, *args) in each process."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(size, _with_gloo, fn, os.path.join(folder, "store"), args, **options)
