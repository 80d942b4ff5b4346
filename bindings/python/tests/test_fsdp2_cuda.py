# SPDX-License-Identifier: Apache-2.0
"""On a GPU, with several ranks on one: training over ODC, equal to one process; and torch's CUDA tensors as buffers."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Net,
    adamw,
    assert_equal_steps,
    assert_near,
    by_one_process,
    divide_gradients,
    edited,
    mesh_of,
    over_odc,
    run_blocked,
    run_pending,
    sample,
    samples,
    shard_blocks,
    square_loss,
    total,
    use_gpu,
    whole_parameters,
)
from ranks import run_ranks
from test_fsdp2_configurations import CASES, skip_what_torch_lacks
from test_fsdp2_exact import train
from test_fsdp2_types import TYPES, typed_training
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch_ranks import dist, run_torch_ranks, torch

import libodc
from libodc import Memory, Type
from libodc.torch.fsdp2 import attach

Tensor = torch.Tensor

# device_count() asks NVML, so that CUDA is not initialized in the process that forks the ranks.
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU, and a torch that uses it"),
]

MINUTES = 240.0  # seconds for a test; ranks that share a GPU take turns


def on_gpu(rank: int, size: int, fn: Any, *args: Any) -> None:
    use_gpu()
    fn(rank, size, *args)


def run_on_gpu(size: int, fn: Any, *args: Any) -> None:
    run_torch_ranks(size, on_gpu, fn, *args, seconds=MINUTES)


# ---- buffers ----


def tensors(rank: int, size: int, job: str) -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    side = torch.cuda.Stream()
    context = libodc.init(rank=rank, size=size, job=job, timeout=LIMIT, device=device)
    shard = context.register("w", 1 << 20, Type.BF16, Type.BF16, memory=Memory.GPU)
    assert shard.slice.parameters is not None and shard.slice.gradients is not None
    mine, sums = torch.from_dlpack(shard.slice.parameters), torch.from_dlpack(shard.slice.gradients)
    assert mine.data_ptr() == shard.slice.parameters.address and mine.device == device and mine.dtype == torch.bfloat16
    assert sums.dtype == torch.float32 and bool((sums == 0).all())
    for minibatch in range(5):
        mine.fill_(minibatch + rank)
        context.publish()
        full = torch.empty(1 << 20, dtype=torch.bfloat16, device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # torch's current stream, and so ODC's
            shard.gather(full)
            for owner, part in enumerate(full.chunk(size)):
                assert bool((part == minibatch + owner).all())
            gradient = torch.full_like(full, 0.5)
            shard.scatter_add(gradient)
        shard.scatter_add(gradient, stream=side)
        context.sync()
        assert bool((sums == size).all())
    for wrong, words in (
        (torch.empty(1 << 20, dtype=torch.bfloat16), "is in host memory, the shard in the memory of cuda:0"),
        (torch.empty(1 << 20, device=device), r"torch\.float32, the shard BF16"),
        (torch.empty(1 << 10, 1 << 10, dtype=torch.bfloat16, device=device).t(), "contiguous"),
    ):
        with pytest.raises(ValueError, match=words):
            shard.gather(wrong)
    with pytest.raises(ValueError, match="is in the memory of cuda:0, the shard in host memory"):
        context.register("host", 8).gather(torch.empty(8, device=device))
    torch.cuda.synchronize()
    context.close()
    del shard, context
    gc.collect()
    mine.fill_(7)  # tensors keep the memory
    assert bool((mine == 7).all())


@pytest.mark.parametrize("size", [1, 2])
def test_tensors(size: int) -> None:
    run_ranks(size, tensors, seconds=MINUTES)


def in_expandable_segments(rank: int, size: int, job: str) -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    tensors(rank, size, job)
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())


def test_tensors_of_expandable_segments() -> None:
    run_ranks(2, in_expandable_segments, seconds=MINUTES)


# ---- training ----


def offloaded(model: Any, mesh: Any) -> None:
    shard_blocks(model.cpu(), mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


OURS = {"offloaded": Case(shard=offloaded)}


def configured(rank: int, size: int, name: str) -> None:
    case = OURS.get(name) or CASES[name]
    expected = by_one_process(case, UNEVEN[size])
    assert_equal_steps(over_odc(case, mesh_of(size), UNEVEN[size], run_blocked), expected, 1e-11)


@pytest.mark.parametrize(
    ("name", "size"), [*((name, 2) for name in CASES), ("blocks", 1), ("blocks", 4), ("prefetching", 4)]
)
def test_configuration(name: str, size: int) -> None:
    skip_what_torch_lacks(name)
    run_on_gpu(size, configured, name)


def single_net(width: int) -> nn.Module:
    return Net(width).float()


def single(model: Any, x: Tensor, weight: float) -> None:
    (model(x.float()).square().sum() * weight).backward()


def in_f32(rank: int, size: int) -> None:
    case = Case(partial(single_net, 256), microbatch=single)
    for run in (run_blocked, run_pending):
        steps = over_odc(case, mesh_of(size), UNEVEN[size], run)
        assert_equal_steps(steps, by_one_process(case, UNEVEN[size]), 1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_f32(size: int) -> None:
    run_on_gpu(size, in_f32)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", [name for name in TYPES if name != "f32 beside frozen bf16"])
def test_types(name: str, size: int) -> None:
    run_on_gpu(size, typed_training, name)


def checked(rank: int, size: int) -> None:
    over_odc(Case(), mesh_of(size), UNEVEN[size], check=True)


def test_the_first_minibatch_equals_a_reduction_by_collectives() -> None:
    run_on_gpu(2, checked)


# ---- what streams change ----


def counts_of(minibatch: int, size: int) -> list[int]:
    """In turn, one rank has none and another three."""
    return [(rank + minibatch) % size * 3 // max(1, size - 1) for rank in range(size)]


def train_steadily(model: Any, job: Any, optimizer: Any, minibatch: int, counts: list[int]) -> None:
    """Nothing between two syncs may wait for the GPU."""
    xs = [x.float() for x in samples(minibatch % 7, dist.get_rank(), counts[dist.get_rank()])]
    torch.cuda.set_sync_debug_mode("error" if minibatch > 3 else "default")
    for x in xs:
        model(x).square().sum().backward()
    torch.cuda.set_sync_debug_mode("default")
    job.sync_gradients(divisor=float(sum(counts)))
    torch.cuda.set_sync_debug_mode("error" if minibatch > 3 else "default")
    optimizer.step()  # publishes
    optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")


def steady(rank: int, size: int, minibatches: int) -> None:
    """Neither torch nor libodc takes more memory of the GPU after the first minibatches."""
    case = Case(partial(single_net, 128))
    model = case.sharded(mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen: dict[int, dict[str, int]] = {}
    with attach(model, optimizer, timeout=LIMIT) as job:
        for minibatch in range(minibatches):
            train_steadily(model, job, optimizer, minibatch, counts_of(minibatch, size))
            if minibatch in ((minibatches - 1) % size + 4 * size, minibatches - 1):  # with equal counts
                torch.cuda.synchronize()
                stats = torch.cuda.memory_stats()
                names = ("num_device_alloc", "reserved_bytes.all.current", "allocated_bytes.all.current")
                seen[minibatch] = {name: int(stats[name]) for name in names}
                seen[minibatch]["slices"] = job.context.stats().slice_bytes
    first, last = seen.values()
    assert all(last[name] <= first[name] for name in first), f"{first} after the first, {last} after {minibatches}"


def test_a_thousand_minibatches_take_no_more_memory() -> None:
    run_on_gpu(2, steady, 1000)


def test_four_ranks_take_no_more_memory() -> None:
    run_on_gpu(4, steady, 60)


class Slow(nn.Module):
    """Occupies the stream, so that what is not ordered behind it comes before it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        torch.cuda._sleep(2_000_000)
        return self.inner(x)


class SlowNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.last = Slow(self.last)  # type: ignore[assignment]


def late_streams(rank: int, size: int) -> None:
    """The host, which reads nothing, runs ahead of the GPU by whole minibatches but for the syncs."""
    model, one = Case(SlowNet).sharded(mesh_of(size)), Case().made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # A publish ahead of the step would expose the old parameters.
    optimizer.register_step_pre_hook(lambda *_: torch.cuda._sleep(20_000_000))
    step = torch.optim.SGD(one.parameters(), lr=0.05)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for minibatch, counts in enumerate(UNEVEN[size] * 3):
            for x in samples(minibatch, rank, counts[rank]):
                square_loss(model, x, 1.0)
            job.sync_gradients(divisor=total(counts))
            optimizer.step()
            optimizer.zero_grad()
            for owner, count in enumerate(counts):
                for x in samples(minibatch, owner, count):
                    square_loss(one, x, 1.0)
            divide_gradients(one, total(counts))
            step.step()
            step.zero_grad()
    trained = {name.replace(".inner", ""): whole_one for name, whole_one in whole_parameters(model).items()}
    for name, parameter in one.named_parameters():
        assert_near(trained[name], parameter.detach(), 1e-11, name)


@pytest.mark.parametrize("size", [2, 4])
def test_a_late_stream_is_waited_for(size: int) -> None:
    run_on_gpu(size, late_streams)


def other_streams(rank: int, size: int) -> None:
    """The whole loop on a stream of the user's own."""
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        expected = by_one_process(Case(), UNEVEN[size])
        assert_equal_steps(over_odc(Case(), mesh_of(size), UNEVEN[size]), expected, 1e-11)


def test_a_stream_of_the_users_own() -> None:
    run_on_gpu(2, other_streams)


def test_edits_are_told_at_the_sync() -> None:
    run_on_gpu(2, edited)


def evaluated(rank: int, size: int) -> None:
    """Forwards without backwards leave gathers on their streams; a sync waits for them."""
    case = Case(shard=partial(shard_blocks, reshard_after_forward=False))
    model = case.sharded(mesh_of(size))
    optimizer = adamw(model)
    one = case.made()
    step = adamw(one)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for minibatch in range(3):
            x = sample(minibatch, 0, 0)
            with torch.no_grad():
                assert torch.allclose(model(x), one(x), rtol=1e-9)
            if rank == 0:
                case.microbatch(model, x, 1.0)
            case.microbatch(one, x, 1.0)
            job.sync_gradients(divisor=1.0)
            optimizer.step()
            optimizer.zero_grad()
            step.step()
            step.zero_grad()


def test_evaluation() -> None:
    run_on_gpu(2, evaluated)


def test_exact_sums_have_the_same_bits(tmp_path: Path) -> None:
    def lines(size: int, way: str) -> str:
        run_on_gpu(size, train, tmp_path, None, way, 0)
        return (tmp_path / way).read_text()

    alone = lines(1, "lb-mini")
    assert lines(2, "chance") == alone
    assert lines(3, "claimed") == alone
