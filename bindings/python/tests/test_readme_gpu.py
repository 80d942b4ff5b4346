# SPDX-License-Identifier: Apache-2.0
"""The README's example of GPU memory runs as printed: on GPUs, and on tests/fakes/cuda with a stand-in for torch."""

import os
import sys
import types
from typing import Any

import numpy as np
import pytest
from fake_cuda import Capsules, Gpu, Stream, TorchStream, needs_fake_cuda
from ranks import run_ranks
from test_readme import PACKAGE, example

import libodc
from libodc import Type


def run_example(rank: int, size: int, job: str, torch: Any) -> libodc.View:
    """Returns the sums; parameters are 3."""
    os.environ.update(ODC_RANK=str(rank), ODC_SIZE=str(size), ODC_JOB=job)
    names: dict[str, Any] = {"libodc": libodc, "torch": torch}
    code = example(PACKAGE / "README.md", "context = libodc.init(device=")
    before, publish, after = code.partition("context.publish()")
    assert publish
    exec(before, names)
    names["mine"].fill_(3)
    exec(publish + after, names)
    sums = names["shard"].slice.gradients
    assert sums is not None
    names["context"].close()
    return sums


class Side(TorchStream):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu.stream().handle, gpu.device)
        self._gpu = gpu

    def wait_stream(self, stream: TorchStream) -> None:
        self._gpu.wait(Stream(stream.cuda_stream))


class Parameters:
    def __init__(self, gpu: Gpu, view: libodc.View) -> None:
        self._gpu, self._view = gpu, view

    def fill_(self, value: float) -> None:
        bf16 = (np.full(self._view.numel, value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        self._gpu.write(self._view.address, bf16)


def stand_in(gpu: Gpu) -> Any:
    """What the example uses of torch. Empty tensors are full of NaN."""
    torch: Any = types.ModuleType("torch")
    current = Side(gpu)
    torch.bfloat16 = Type.BF16
    torch.device = lambda kind, number: f"{kind}:{number}"
    torch.from_dlpack = lambda view: Parameters(gpu, view)
    torch.empty = lambda numel, dtype, device: Capsules(gpu.array(np.full(numel, 0x7FC0, np.uint16)), dtype)
    torch.cuda = types.SimpleNamespace(
        Stream=lambda: Side(gpu), current_stream=lambda device=None: current, is_initialized=lambda: True
    )
    return torch


def on_the_driver_for_tests(rank: int, size: int, job: str) -> None:
    os.environ["FAKE_CUDA_DELAY_US"] = "20000"  # so that work which does not wait for other work is seen
    gpu = Gpu(1, 0)
    gpu.choose()
    sys.modules["torch"] = stand_in(gpu)
    sums = run_example(rank, size, job, sys.modules["torch"])
    assert (gpu.read(sums.address, sums.numel, np.float32) == 3 * size).all()


@needs_fake_cuda
@pytest.mark.parametrize("size", [1, 2])
def test_on_the_driver_for_tests(size: int) -> None:
    run_ranks(size, on_the_driver_for_tests)


def on_a_gpu(rank: int, size: int, job: str) -> None:
    import torch

    sums = torch.from_dlpack(run_example(rank, size, job, torch))
    assert bool((sums == 3 * size).all())


@pytest.mark.cuda
@pytest.mark.parametrize("size", [1, 2])
def test_on_a_gpu(size: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.device_count() == 0:  # asks NVML, so that CUDA is not initialized before the ranks are forked
        pytest.skip("needs a GPU, and a torch that uses it")
    run_ranks(size, on_a_gpu, seconds=240)
