# SPDX-License-Identifier: Apache-2.0
"""What attach refuses, and the errors of a wrongly used job: immediate, with a clear text, on every rank that made the
call."""

import gc
import inspect
import logging
import os
import signal
import threading
import weakref
from typing import Any

import pytest
from torch_ranks import dist, run_torch_ranks, torch
from two_layers import backward, continue_training, plain, raises, sharded, training

import libodc
from libodc.torch import fsdp2

nn = torch.nn
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
init_device_mesh = torch.distributed.device_mesh.init_device_mesh


def refuses(kind: type[Exception], words: str, model: Any, optimizer: Any = None) -> None:
    with raises(kind, words):
        fsdp2.attach(model, optimizer, timeout=60)


# ---- attach ----


def refusals(rank: int, size: int) -> None:
    refuses(libodc.ArgumentError, "call torch.distributed.fsdp.fully_shard before attach", plain())
    refuses(libodc.ArgumentError, "model is int", 3)
    model = sharded(size)
    refuses(libodc.ArgumentError, "optimizer is int", model, 3)
    refuses(
        libodc.ArgumentError,
        "owns none of the model's trainable parameters",
        model,
        torch.optim.SGD(plain().parameters()),
    )

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    refuses(libodc.ArgumentError, "is on meta: materialise", sharded(size, model))

    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("replicate", "shard"))
    refuses(libodc.UnsupportedError, "HSDP", sharded(size, mesh=mesh))
    refuses(libodc.UnsupportedError, "fewer ranks", sharded(size, reshard_after_forward=2))

    model = sharded(size)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    refuses(libodc.UnsupportedError, 'weight" has a post-accumulate-grad hook (an optimizer in backward?)', model)

    model = sharded(size)
    model.set_all_reduce_hook(lambda _: None)
    refuses(libodc.UnsupportedError, "all-reduce hook", model)
    model = sharded(size)
    model.set_custom_all_gather(Foreign())
    refuses(libodc.UnsupportedError, "communicates through Foreign", model)

    model = sharded(size)
    model.set_allocate_memory_from_process_group_for_comm(True)
    refuses(libodc.UnsupportedError, "communicates through ProcessGroupAlloc", model)

    one, other = (init_device_mesh("cpu", (size,)) for _ in range(2))
    model = plain()
    fully_shard(model[0], mesh=one)
    fully_shard(model[2], mesh=init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("a", "b"))["b"])
    fully_shard(model, mesh=other)
    refuses(libodc.UnsupportedError, "sharded over different ranks", model)

    # After each refusal the model is unchanged.
    for one in (model[0], model[2]):
        group = one._get_fsdp_state()._fsdp_param_group
        assert type(group._all_gather_comm).__name__ == "DefaultAllGather" and group.gradient_divide_factor is None

    model = sharded(size)
    optimizer = torch.optim.SGD(model.parameters())
    job = fsdp2.attach(model, optimizer, timeout=60)
    refuses(libodc.UnsupportedError, "attached already", model, optimizer)
    job.close()
    fsdp2.attach(model, optimizer, timeout=60).close()


class Foreign(fsdp2.group.AllGather):
    def allocate(self, *_: Any, **__: Any) -> Any: ...

    def __call__(self, *_: Any, **__: Any) -> Any: ...


def test_refusals() -> None:
    run_torch_ranks(4, refusals)


def two_meshes_in_a_module(rank: int, size: int) -> None:
    common = torch.distributed.fsdp._fully_shard._fsdp_common
    some = common.FSDPMeshInfo(
        init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("a", "b"))["b"], shard_mesh_dim=0
    )
    placed = common.ShardPlacementResult(torch.distributed.tensor.Shard(0), some)
    model = plain()
    fully_shard(
        model,
        mesh=init_device_mesh("cpu", (size,)),
        shard_placement_fn=lambda parameter: placed if parameter.ndim == 1 else None,
    )
    refuses(libodc.UnsupportedError, "has 2 parameter groups", model)


def test_two_meshes_in_a_module_are_refused() -> None:
    if not hasattr(torch.distributed.fsdp._fully_shard._fsdp_common, "ShardPlacementResult"):
        pytest.skip("a module has one mesh in this torch")
    run_torch_ranks(4, two_meshes_in_a_module)


def replicated(rank: int, size: int) -> None:
    model = plain()
    mesh = init_device_mesh("cpu", (size,))
    replicate = pytest.importorskip("torch.distributed._composable.replicate_with_fsdp").replicate
    if "mesh" in inspect.signature(replicate).parameters:
        replicate(model, mesh=mesh)
    else:  # until torch 2.9
        replicate(model, device_mesh=mesh)
    refuses(libodc.UnsupportedError, "replicate", model)


def test_replicate_is_refused() -> None:
    run_torch_ranks(2, replicated)


def different_models(rank: int, size: int) -> None:
    words = 'in FSDP group "(root)" rank 0 has "2.weight" torch.float32 [3, 6], rank 1 "2.weight" torch.float32 [3, 7]'
    refuses(libodc.MismatchError, words, sharded(size, plain(6 if rank == 0 else 7)))
    model = plain()
    if rank == 1:
        model[0].weight.requires_grad_(False)
    refuses(libodc.MismatchError, 'rank 1 "0.weight" torch.float32 [6, 4] (frozen)', sharded(size, model))
    model, mesh = plain(), init_device_mesh("cpu", (size,))
    if rank == 1:
        fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    refuses(libodc.MismatchError, "rank 0 has 1 FSDP groups", model)


def test_ranks_with_different_models() -> None:
    run_torch_ranks(2, different_models)


class Wrapper:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def wrapped(rank: int, size: int) -> None:
    for wrap in (Wrapper, lambda one: [Wrapper(Wrapper(one))], lambda one: (one, one)):
        model = sharded(size)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fsdp2.attach(model, wrap(optimizer), timeout=60) as job:
            for _ in range(2):
                backward(model)
                job.sync_gradients()
                optimizer.step()
                optimizer.zero_grad()
            assert job.context.minibatch == 2


def test_wrapped_optimizers_are_followed() -> None:
    run_torch_ranks(2, wrapped)


# ---- a minibatch ----


def phases(rank: int, size: int) -> None:
    with training(size) as (job, model, optimizer):
        before = [p.to_local().clone() for p in model.parameters()]
        backward(model)
        with raises(libodc.PhaseError, "call sync_gradients() before optimizer.step"):
            optimizer.step()
        assert all(torch.equal(p.to_local(), was) for p, was in zip(model.parameters(), before, strict=True))
        with raises(libodc.PhaseError, "publish() would lose them"):
            job.publish()
        # Neither call has changed anything.
        job.sync_gradients()
        with raises(libodc.PhaseError, "second sync_gradients() without a step or cleared gradients"):
            job.sync_gradients()
    with training(size) as (job, model, optimizer):
        backward(model)
        job.sync_gradients()
        backward(model)
        with raises(libodc.PhaseError, "second sync_gradients", "valid=False"):
            job.sync_gradients()
        with raises(libodc.PhaseError, "call sync_gradients() before optimizer.step"):
            optimizer.step()
        assert job.sync_gradients(valid=False).discarded
        backward(model)
        with raises(libodc.PhaseError, "second sync_gradients"):  # the first one's gradients are still there
            job.sync_gradients()
        assert job.sync_gradients(valid=False).discarded
        optimizer.step()  # by the first sync's gradients
        optimizer.zero_grad()
        continue_training(job, model, optimizer)
    with training(size) as (job, model, optimizer), job.editing():
        with raises(libodc.PhaseError, "sync_gradients() within editing()"):
            job.sync_gradients()
    with training(size) as (job, model, optimizer):
        output = model(torch.ones(2, 4)).sum()
        backward(model)
        job.sync_gradients()
        with raises(libodc.PhaseError):  # of an older forward
            output.backward()
            optimizer.step()
    with training(size) as (job, model, optimizer):
        backward(model)
        job.sync_gradients()
        model(torch.ones(2, 4))
        if size == 1:  # nobody has read what was published
            optimizer.step()
            continue_training(job, model, optimizer)
        else:
            with raises(libodc.PhaseError, "a forward, publish() or editing() between sync_gradients()"):
                optimizer.step()
    with training(size) as (job, model, optimizer):
        model.set_requires_gradient_sync(False)
        backward(model)
        with raises(libodc.PhaseError, '"2.weight"', "set_requires_gradient_sync(True)"):
            job.sync_gradients()
    with training(size) as (job, model, optimizer):
        model.set_gradient_divide_factor(2.0)
        with raises(libodc.PhaseError, "pass sync_gradients(divisor"):
            backward(model)
    group = sharded(size)._get_fsdp_state()._fsdp_param_group
    with training(size) as (job, model, optimizer):
        model.set_custom_all_gather(group._all_gather_comm)
        with raises(libodc.PhaseError, 'FSDP group "(root)" were changed after attach'):
            backward(model)
    with training(size) as (job, model, optimizer):
        model.set_custom_reduce_scatter(group._reduce_scatter_comm)
        backward(model)
        with raises(libodc.PhaseError, 'FSDP group "(root)" were changed after attach'):
            job.sync_gradients()
    with training(size, frozen=True) as (job, model, optimizer):
        model[0].set_custom_all_gather(group._all_gather_comm)
        backward(model)
        with raises(libodc.PhaseError, 'FSDP group "0" were changed after attach'):
            job.sync_gradients()


def test_wrong_moments() -> None:
    run_torch_ranks(2, phases)
    run_torch_ranks(1, phases)


def arguments(rank: int, size: int) -> None:
    with training(size) as (job, model, optimizer):
        for options, words in (
            ({"divisor": 1, "weight": 1}, "not both"),
            ({"divisor": 0}, "divisor is 0"),
            ({"divisor": float("nan")}, "divisor is nan"),
            ({"weight": -1}, "weight is -1"),
            ({"sums": {str(i): 0.0 for i in range(64)}}, "64 sums"),
        ):
            with raises(libodc.ArgumentError, words):
                job.sync_gradients(**options)
        report = job.sync_gradients(sums={"b": 1, "a": torch.tensor(0.5 + rank)})
        assert report.sums == {"a": sum(0.5 + r for r in range(size)), "b": size}
        assert report.microbatches == [0] * size and all(p.grad is None for p in model.parameters())
        optimizer.step()
        with raises(libodc.MismatchError, "all call the same, with the same divisor"):
            job.sync_gradients(divisor=1.0 + rank)
    with training(size) as (job, model, optimizer):
        with raises(libodc.MismatchError, "ended the minibatch with ", f", but ranks [{1 - rank}] with something else"):
            job.close() if rank == 0 else job.sync_gradients()
    with training(size) as (job, model, optimizer):
        job.remove()
        for call in (job.sync_gradients, job.publish):
            with raises(libodc.PhaseError, "closed or removed"):
                call()
        job.close()


def test_arguments() -> None:
    run_torch_ranks(2, arguments)


def read_only(rank: int, size: int) -> None:
    model = sharded(size)
    with fsdp2.attach(model, timeout=60) as job:
        with torch.no_grad():
            for _ in range(rank + 1):
                model(torch.ones(2, 4))
        with raises(libodc.PhaseError, "attached without an optimizer"):
            job.sync_gradients()
        with raises(libodc.PhaseError, "a backward through a model that was attached without an optimizer"):
            backward(model)


def test_read_only_models_have_no_gradients() -> None:
    run_torch_ranks(2, read_only)


def nan(rank: int, size: int) -> None:
    with training(size) as (job, model, optimizer):
        backward(model, float("nan") if rank == 0 else 1.0)
        job.sync_gradients()
        assert all(p.grad.to_local().isnan().all() for p in model.parameters() if p.to_local().numel())


def test_nan_gradients_are_passed_on() -> None:
    run_torch_ranks(2, nan)


# ---- what is logged ----


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def count(self, words: str) -> int:
        return sum(words in line for line in self.lines)


def logs(rank: int, size: int) -> None:
    kept = Kept()
    logging.getLogger("libodc").addHandler(kept)
    logging.getLogger("libodc").setLevel(logging.INFO)
    with training(size) as (job, model, optimizer):
        assert kept.count("2 groups over 2 ranks, parameters gathered as float32, gradients added as float32") == (
            rank == 0
        )
        for uneven in (0, 1, 2):
            for _ in range(1 + uneven * rank):
                backward(model)
            report = job.sync_gradients()
            assert report.microbatches == [1, 1 + uneven]
            optimizer.step()
            optimizer.zero_grad()
            told = rank == 0 and uneven > 0  # once per job
            assert kept.count("was divided as if each rank had run one") == told
            assert kept.count("a mean over microbatches pass sync_gradients(divisor=3)") == told
        for explicit in ({"divisor": 3.0}, {"weight": 1.0 + rank}):
            backward(model)
            job.sync_gradients(**explicit)
            optimizer.step()
            optimizer.zero_grad()
        assert kept.count("was to remove") == 0
        backward(model)
        dist.all_reduce(torch.ones(1))
        job.sync_gradients()
        words = "2 collectives, on all ranks together, ran between the first forward of minibatch 5 and its sync"
        assert kept.count(words) == (rank == 0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.sync_gradients(weight=0)
        assert kept.count("the sum of weight over ranks is 0") == (rank == 0)

    model = sharded(size)
    some = torch.optim.SGD(model[0].parameters())
    fsdp2.attach(model, some, timeout=60).close()
    assert kept.count("no attached optimizer owns 2 trainable parameters (2.weight, 2.bias") == (rank == 0)


def test_logs() -> None:
    run_torch_ranks(2, logs)


# ---- left-over state ----


class Pair(nn.Module):
    """Two parameters of one size, so that one could be taken for the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(4, 4))
        self.b = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Any) -> Any:
        return x @ self.a @ self.b


def swapped(rank: int, size: int) -> None:
    model = Pair()
    model.b.requires_grad_(False)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    job = fsdp2.attach(model, torch.optim.SGD(model.parameters()), timeout=60)
    backward(model)
    job.sync_gradients()
    model.zero_grad()
    job.publish()
    model.a.requires_grad_(False)
    model.b.requires_grad_(True)
    with raises(libodc.ArgumentError, '"b"', "was frozen at attach and is trainable now"):
        backward(model)
    dist.barrier()
    job.remove()


def test_what_is_trainable_must_not_be_swapped() -> None:
    run_torch_ranks(2, swapped)
    run_torch_ranks(1, swapped)


def gathered_ahead(rank: int, size: int) -> None:
    """A gather that was started and not used must not supply the next minibatch's parameters."""
    model = sharded(size)
    model.unshard(async_op=True)  # before attach, too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        for _ in range(2):
            if rank == 0:
                backward(model)
            else:
                model[0].unshard(async_op=True)
            job.sync_gradients(divisor=1.0)
            optimizer.step()
            optimizer.zero_grad()
            expected = model[0].weight.full_tensor()
            model[0].unshard()
            assert torch.equal(model[0].weight, expected)
            model[0].reshard()


def test_what_was_gathered_ahead_is_dropped() -> None:
    run_torch_ranks(2, gathered_ahead)


def unsharded_before(rank: int, size: int) -> None:
    model = sharded(size)
    with torch.no_grad():
        model(torch.ones(2, 4))  # leaves the root unsharded
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        backward(model)
        job.sync_gradients()
        optimizer.step()


def test_attach_after_an_evaluation() -> None:
    run_torch_ranks(2, unsharded_before)


def mixed_ends(rank: int, size: int) -> None:
    """Ranks may be in different phases when all publish or trace: here one has skipped the step."""
    with training(size) as (job, model, optimizer):
        backward(model)
        job.sync_gradients()
        if rank == 0:
            optimizer.step()
        optimizer.zero_grad()
        job.publish()
        model(torch.ones(2, 4))
    model = sharded(size)
    with raises(libodc.MismatchError, "ended the minibatch with"):
        with fsdp2.attach(model, torch.optim.SGD(model.parameters()), timeout=60) as job:
            if rank == 0:
                job.sync_gradients()
    # A close that fails still restores the model.
    fsdp2.attach(model, torch.optim.SGD(model.parameters()), timeout=60).close()


def test_mixed_ends() -> None:
    run_torch_ranks(2, mixed_ends)


def dropped(rank: int, size: int) -> None:
    model = sharded(size)
    alive = weakref.ref(model[0])
    job = fsdp2.attach(model, torch.optim.SGD(model.parameters()), timeout=60)
    backward(model)
    dist.barrier()
    del model, job
    gc.collect()
    assert alive() is None


def test_a_dropped_job_is_freed() -> None:
    run_torch_ranks(2, dropped)


def other_buffers(rank: int, size: int) -> None:
    """A buffer that is checked is not so for another one."""
    with training(size) as (job, model, _):
        backward(model)
        group = job._groups[0]
        numel = group.layout.numel
        good = torch.empty(2 * numel * size, dtype=group.layout.dtype)
        for wrong in (good, good[::2], good[: numel * size].to(torch.float16)):
            group.gather(good[: numel * size], good[:numel], None)
            with pytest.raises((ValueError, libodc.PhaseError), match=r"elements|contiguous"):
                group.gather(wrong, wrong[:numel], None)
        full = torch.zeros(group.layout.gradient_numel * size, dtype=group.layout.gradient_dtype)
        group.add(full, None)
        with pytest.raises(ValueError, match="contiguous"):
            group.add(torch.stack([full, full], 1)[:, 0], None)
        group.add(full, None)
        job.sync_gradients(divisor=1.0)


def test_buffers_of_another_kind_are_refused_after_good_ones() -> None:
    run_torch_ranks(2, other_buffers)


def interrupted(rank: int, size: int) -> None:
    """Ctrl-C ends the sync, and the repeated call resumes it, with the same arguments only."""
    with training(size) as (job, model, optimizer):
        backward(model)
        if rank == 1:
            dist.barrier()
            report = job.sync_gradients(divisor=2.0)
        else:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                job.sync_gradients(divisor=2.0)
            with raises(libodc.ArgumentError, "is repeated with other arguments"):
                job.sync_gradients(divisor=3.0)
            dist.barrier()
            report = job.sync_gradients(divisor=2.0)
        assert report.microbatches == [1] * size
        optimizer.step()


def test_an_interrupted_sync_is_taken_up_again() -> None:
    run_torch_ranks(2, interrupted)


def told(rank: int, size: int) -> None:
    model = sharded(size)
    with pytest.raises(libodc.ArgumentError if rank == 1 else libodc.AbortedError) as caught:
        with fsdp2.attach(model, torch.optim.SGD(model.parameters()), timeout=60) as job:
            job.sync_gradients(weight=float("nan") if rank == 1 else 1.0)
    assert rank == 1 or "it raised ArgumentError: weight is nan" in str(caught.value)


def test_a_local_mistake_is_told_to_all() -> None:
    run_torch_ranks(2, told)


def moved(rank: int, size: int) -> None:
    with training(size) as (job, model, optimizer):
        model.double()
        with raises(
            libodc.PhaseError, "elements of torch.float64, and at attach gathered", "remove() the job before moving"
        ):
            model(torch.ones(2, 4, dtype=torch.float64))
    model = sharded(size)
    model.set_gradient_divide_factor(1.0 + rank)
    refuses(libodc.MismatchError, "ranks divide by different factors", model, torch.optim.SGD(model.parameters()))
    with training(size) as (job, model, optimizer):
        with raises(libodc.ArgumentError, "sums['loss'] is 'x', must be a number"):
            job.sync_gradients(sums={"loss": "x"})


def test_a_moved_model_and_different_factors() -> None:
    run_torch_ranks(2, moved)
