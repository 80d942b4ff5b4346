# SPDX-License-Identifier: Apache-2.0
"""A parameter that gathers something other than itself (fsdp_pre_all_gather): here f32 sent as bf16."""

from typing import Any

import pytest
from torch_ranks import dist, run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2

nn = torch.nn
aten = torch.ops.aten
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
tree_map = torch.utils._pytree.tree_map

_KEEP = {
    aten.as_strided.default,
    aten.clone.default,
    aten.copy_.default,
    aten.detach.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.view.default,
}


class Rounded(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        like = {name: getattr(inner, name) for name in ("dtype", "device", "requires_grad")}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), **like)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda one: one.inner if isinstance(one, cls) else one, (args, kwargs or {}))
        result = func(*args, **kwargs)
        if func not in _KEEP:
            return result
        return tree_map(lambda one: cls(one) if isinstance(one, torch.Tensor) else one, result)

    def __tensor_flatten__(self) -> Any:
        return ["inner"], {}

    @staticmethod
    def __tensor_unflatten__(inner: Any, *_: Any) -> Any:
        return Rounded(inner["inner"])

    def fsdp_pre_all_gather(self, mesh: Any, size: Any, stride: Any, module: Any, policy: Any) -> Any:
        rows = -(-size[0] // mesh.size())
        padding = self.inner.new_zeros(rows - self.inner.shape[0], *self.inner.shape[1:])
        return (torch.cat([self.inner, padding]).to(torch.bfloat16),), size

    def fsdp_post_all_gather(self, gathered: Any, size: Any, dtype: Any, *, out: Any = None) -> Any:
        whole = gathered[0][: size[0]].to(dtype, copy=True)
        if out is None:
            return whole, (whole,)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
            out.copy_(whole)
        return None


def make(size: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4))
    model[0].weight = nn.Parameter(Rounded(model[0].weight.detach()))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    for module in (model[0], model):
        fully_shard(module, mesh=mesh)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # plain FSDP2 over gloo needs it
    return model


def train(rank: int, size: int, over_odc: bool) -> list[Any]:
    model = make(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = fsdp2.attach(model, optimizer, timeout=60, check=True) if over_odc else None
    for step in range(3):
        data = torch.randn(3, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        idle = step == 2 and rank == size - 1  # it gets gradients, too
        if job is None or not idle:
            (model(data).square().sum() * (not idle)).backward()
        if job is not None:
            job.sync_gradients()
        if step != 1:  # a skipped step is published at the next forward
            optimizer.step()
        optimizer.zero_grad()
    if job is not None:
        with torch.no_grad():
            model[0].weight.to_local().inner.add_(1)
        with pytest.raises(libodc.PhaseError, match='of FSDP group "0" has changed since it was published'):
            model(torch.ones(2, 6))
        model.reset_iter_state()
        with torch.no_grad():
            model[0].weight.to_local().inner.sub_(1)
        dist.barrier()
        job.remove()
    shards = [parameter.to_local() for parameter in model.parameters()]
    return [shard.inner if isinstance(shard, Rounded) else shard for shard in shards]


def equal(rank: int, size: int) -> None:
    for ours, plain in zip(train(rank, size, True), train(rank, size, False), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_extension(size: int) -> None:
    run_torch_ranks(size, equal)
