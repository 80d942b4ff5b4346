# SPDX-License-Identifier: Apache-2.0
"""Parameters that live in their slices, and gradients that are the sums: who else sees that memory, and until when."""

import copy
import gc
import io
import itertools
import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    News,
    adamw,
    assert_equal_steps,
    assert_near,
    by_one_process,
    finish,
    gathers_checked,
    mesh_of,
    over_odc,
    reshard,
    run_microbatches,
    sample,
    shard_blocks,
    total,
    transposed,
    whole_gradients,
    whole_parameters,
)
from logged import lines_logged, warnings_logged
from test_fsdp2_extension import make as extended
from test_fsdp2_tied import Tied, shard_and_tie
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch_ranks import dist, run_torch_ranks, torch

from libodc import ArgumentError, PhaseError
from libodc.torch.fsdp2 import Job, attach, homes

Tensor = torch.Tensor


def train(job: Job, model: Any, optimizer: Any, minibatch: int = 0) -> None:
    counts = (1,) * dist.get_world_size()
    with gathers_checked(model):
        run_microbatches(Case(), model, minibatch, counts)
    job.sync_gradients(divisor=total(counts))
    optimizer.step()
    optimizer.zero_grad()


def locals_of(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: one.to_local() for name, one in tensors.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---- options ----


def options(rank: int, size: int) -> None:
    expected = by_one_process(Case(), UNEVEN[size])
    for chosen in ({}, {"parameters": "copy"}, {"gradients": "copy"}, {"gradients": "copy", "parameters": "copy"}):
        assert_equal_steps(over_odc(Case(), mesh_of(size), UNEVEN[size], check=True, **chosen), expected)
    model = Case().sharded(mesh_of(size))
    for wrong in ({"parameters": "views"}, {"gradients": True}):
        with pytest.raises(ArgumentError, match='"copy"'):
            attach(model, adamw(model), **wrong)


@pytest.mark.parametrize("size", [1, 3])
def test_options(size: int) -> None:
    run_torch_ranks(size, options)


def optimizers(rank: int, size: int) -> None:
    for how in ("foreach", "fused"):
        optimized = partial(adamw_by, how)
        expected = by_one_process(Case(), UNEVEN[size], optimized=optimized)
        living: dict[str, Any] = {"parameters": "slice", "gradients": "view"}
        assert_equal_steps(over_odc(Case(), mesh_of(size), UNEVEN[size], optimized=optimized, **living), expected)


def adamw_by(how: str, model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, **{how: True})


def test_optimizers_step_in_slices() -> None:
    run_torch_ranks(2, optimizers)


# ---- parameters ----


def kept_state(rank: int, size: int) -> None:
    """A state_dict() stays the parameters' own, whenever it was made, and however it was loaded."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    before = model.state_dict()
    with attach(model, optimizer, timeout=LIMIT, parameters="slice") as job:
        during = model.state_dict()
        for minibatch in range(2):
            train(job, model, optimizer, minibatch)
            assert same(locals_of(before), locals_of(model.state_dict()))
        if size > 1:
            assert all(group.homes.hold_all() for group in job._groups)  # nothing is copied
        loaded = {name: one.detach().clone().mul_(0.5) for name, one in model.state_dict().items()}
        model.load_state_dict(loaded, assign=True)
        job.publish()
        train(job, model, optimizer)
        assert same(locals_of(loaded), locals_of(model.state_dict()))
        before = model.state_dict()
        model.load_state_dict({name: one.detach().clone() + 1 for name, one in before.items()})
        job.publish()
        train(job, model, optimizer)
        during = model.state_dict()
    with torch.no_grad():  # as plain FSDP2's optimizer does
        for parameter in model.parameters():
            parameter.add_(1)
    for kept in (before, during):
        assert same(locals_of(kept), locals_of(model.state_dict()))


@pytest.mark.parametrize("size", [1, 3])
def test_a_kept_state_dict_stays_current(size: int) -> None:
    run_torch_ranks(size, kept_state)


def plain_tensors(rank: int, size: int) -> None:
    """A parameter that plain tensors see stays where it is, and attach says so; the others move."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    seen = model.first.weight.detach().to_local()[:1]
    with warnings_logged() as lines, attach(model, optimizer, timeout=LIMIT, parameters="slice") as job:
        for minibatch in range(2):
            train(job, model, optimizer, minibatch)
            assert torch.equal(seen, model.first.weight.to_local()[:1])
    words = '1 parameters cannot live in their slices and are copied at each publish: "first.weight" (seen by other'
    assert sum(words in line for line in lines) == (rank == 0)


def test_a_parameter_that_plain_tensors_see_is_copied() -> None:
    run_torch_ranks(2, plain_tensors)


def leaving(rank: int, size: int) -> None:
    """What stops to live in its slice after attach is told once, with what it costs."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with warnings_logged() as lines, attach(model, optimizer, timeout=LIMIT, parameters="slice") as job:
        for minibatch in range(3):
            loaded = {name: one.detach().clone() for name, one in model.state_dict().items()}
            seen = loaded["first.weight"].to_local()[:1] if minibatch > 0 else None
            model.load_state_dict(loaded, assign=True)
            del loaded
            job.publish()
            if rank == 0:  # others' shards are padded, so FSDP2 has copied them
                assert (seen is None) == all(group.homes.hold_all() for group in job._groups)
            assert bool(lines) == (rank == 0 and seen is not None)
            train(job, model, optimizer, minibatch)
        nbytes = model.first.weight.to_local().nbytes
    words = (
        f"odc: 1 parameters no longer live in their slices: each publish copies them, {nbytes / 2**20:.2f} MiB a rank, "
        'and their memory is beside the slices: "first.weight" (seen by other tensors)'
    )
    assert lines == ([words] if rank == 0 else [])


def test_parameters_that_leave_their_slices_are_told() -> None:
    run_torch_ranks(2, leaving)


def in_bf16(size: int) -> Any:
    model = Case().made()
    shard_blocks(model, mesh_of(size), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return model


def tied(size: int) -> Any:
    return Case(Tied, shard_and_tie).sharded(mesh_of(size))


def in_f64(size: int) -> Any:
    return Case().sharded(mesh_of(size))


COPIED: dict[Callable[[int], Any], str] = {
    in_bf16: '12 parameters … publish: "first.weight" and 11 more (float64, gathered as bfloat16)',
    tied: '1 parameters … publish: "table.weight" (in several FSDP groups)',
    extended: '2 parameters … publish: "0.weight" and 1 more (gathered by an extension)',
    in_f64: "",
}


def copied(rank: int, size: int, make: Callable[[int], Any]) -> None:
    """Where it must be so, that is no warning."""
    words = COPIED[make].replace("…", "cannot live in their slices and are copied at each")
    for chosen in ("slice", "copy"):
        with warnings_logged() as warned, lines_logged() as lines, attach(make(size), timeout=LIMIT, parameters=chosen):
            pass
        told = [line for line in lines if "copied" in line]
        assert told == ([f"odc: {words}"] if words and rank == 0 and chosen == "slice" else [])
        assert warned == []


@pytest.mark.parametrize("make", COPIED)
def test_attach_says_which_parameters_are_copied(make: Callable[[int], Any]) -> None:
    run_torch_ranks(2, copied, make)


def replaced(rank: int, size: int) -> None:
    """Other memory for a parameter is taken over by publish, and missed where that was forgotten."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)

    def assign() -> None:
        model.load_state_dict({name: one.detach().clone() * 2 for name, one in model.state_dict().items()}, assign=True)

    with attach(model, optimizer, timeout=LIMIT, parameters="slice") as job:
        for _ in range(2):
            train(job, model, optimizer)
            assign()
            with pytest.raises(PhaseError, match="has changed since it was published"):
                model(sample(0, rank, 0))
            job.publish()
            train(job, model, optimizer)
        for layout in (torch.clone, transposed):
            with torch.no_grad():
                for parameter in model.parameters():  # FSDP2 does not see this
                    parameter._local_tensor.data = layout(parameter._local_tensor * 2)
            job.publish()
            expected = whole_parameters(model)
            with job.unsharded():
                for name, parameter in model.named_parameters():
                    assert torch.equal(parameter, expected[name])
            train(job, model, optimizer)


def test_replaced_memory_is_published() -> None:
    run_torch_ranks(2, replaced)


def adopted(rank: int, size: int) -> None:
    """Loading replaces parameters, which an optimizer takes over: theirs are the gradients from then on."""
    for parameters, gradients in itertools.product(("slice", "copy"), ("view", "copy")):
        print(parameters, gradients)  # shown where the next lines fail
        model = Case().sharded(mesh_of(size))
        optimizer = adamw(model)
        with attach(model, optimizer, timeout=LIMIT, parameters=parameters, gradients=gradients) as job:
            train(job, model, optimizer)
            model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)
            optimizer.param_groups[0]["params"] = list(model.parameters())
            job.publish()
            optimizer.zero_grad()
            model(sample(0, rank, 0)).square().sum().backward()
            job.sync_gradients()
            for name, one in model.named_parameters():
                assert one.grad is not None and one.grad.full_tensor().count_nonzero() > 0, name
            optimizer.step()


def test_replaced_parameters_get_their_gradients() -> None:
    run_torch_ranks(2, adopted)


def swap(places: Tensor, one: int, other: int) -> None:
    places[[one, other]] = places[[other, one]]


EDITS: list[Callable[[Any], Any]] = [
    lambda parameter: parameter.data.neg_(),
    lambda parameter: parameter.data.clamp_(-0.01, 0.01),
    lambda parameter: parameter.data.to_local().view(-1)[-1:].add_(1e-9),
    lambda parameter: swap(parameter.data.to_local().view(-1), 0, 1),
    lambda parameter: parameter.detach().mul_(2),
    lambda parameter: torch._foreach_add_([parameter], 1.0),
]


def edits(rank: int, size: int, small: int) -> None:
    """Also those that torch does not count are found at the first forward, by each rank that made them. `small`: bytes
    of slices that are compared bit by bit, which also tells what was edited."""
    homes._SMALL = small
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT, parameters="slice") as job:
        for edit in EDITS:
            with torch.no_grad():
                edit(model.first.weight)
            named = r'parameter "first\.weight"' if small else r'.*"first\.weight".*'
            with pytest.raises(PhaseError, match=rf"^{named} of FSDP group .* has changed since it was published"):
                model(sample(0, rank, 0))
            job.publish()
            train(job, model, optimizer)


@pytest.mark.parametrize("small", [0, homes._SMALL])
def test_edits_are_found(small: int) -> None:
    run_torch_ranks(2, edits, small)


def late_edits(rank: int, size: int, small: int) -> None:
    """Within a minibatch, behind the rank's own gathers, where others may still read: the sync finds them."""
    homes._SMALL = small
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for edit in EDITS:
            run_microbatches(Case(), model, 0, (1,) * size)
            reshard(model)
            if rank == 0:
                with torch.no_grad():
                    edit(model.first.weight)
                with pytest.raises(PhaseError, match=r'"first\.weight".* has changed within the minibatch'):
                    job.sync_gradients()
            assert job.sync_gradients(valid=rank != 0).discarded  # as the error says nothing of what others have read
            train(job, model, optimizer)


@pytest.mark.parametrize("small", [0, homes._SMALL])
def test_edits_within_a_minibatch_are_found(small: int) -> None:
    run_torch_ranks(2, late_edits, small)


def half_read(rank: int, size: int) -> None:
    """A rank edits and publishes while others may still run forwards: rank 0 says so, once. Not with copies, within
    editing(), after a sync, or where there was no forward."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)

    def edit() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)

    def evaluate() -> None:
        with torch.no_grad():
            model(sample(0, 0, 0))
        reshard(model)

    for options in ({"parameters": "copy"}, {}):
        with attach(model, optimizer, timeout=LIMIT, **options) as job:
            with warnings_logged() as lines:
                edit()
                job.publish()
                evaluate()
                with job.editing():
                    edit()
                evaluate()
                job.publish()
                run_microbatches(Case(), model, 0, (1,) * size)
                job.sync_gradients()
                edit()
                optimizer.zero_grad()
                job.publish()
                train(job, model, optimizer)
            assert not lines
            for _ in range(2):
                if rank == 1:
                    evaluate()
                dist.barrier()
                with warnings_logged() as more:
                    if rank == 0:
                        edit()
                    job.publish()
                lines += more
            told = ["publish(): parameter" in line and "was edited in its slice" in line for line in lines]
            assert told == [True] * (rank == 0 and not options)


def test_edits_that_others_may_have_read_are_told() -> None:
    run_torch_ranks(2, half_read)


def editing(rank: int, size: int) -> None:
    """One rank still evaluates while the other wants to edit: it reads what was published."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT, parameters="slice") as job:
        train(job, model, optimizer)
        with torch.no_grad():
            expected = model(sample(0, 0, 0))
            if rank == 1:
                for _ in range(3):
                    assert torch.equal(model(sample(0, 0, 0)), expected)
            with job.editing():
                for parameter in model.parameters():
                    parameter.mul_(0.0)
            assert not model(sample(0, 0, 0)).any()
            reshard(model)
            with pytest.raises(PhaseError, match=r"a forward within editing\(\)"), job.editing():
                model(sample(0, 0, 0))
            assert not model(sample(0, 0, 0)).any()
            reshard(model)
        run_microbatches(Case(), model, 0, (1,) * size)
        with pytest.raises(PhaseError, match=r"editing\(\) would lose them"), job.editing():
            pass
        job.sync_gradients()


def test_editing_waits_for_readers() -> None:
    run_torch_ranks(2, editing)


def unowned(rank: int, size: int) -> None:
    """What no attached optimizer steps keeps its gradient."""
    model = Case().sharded(mesh_of(size))
    parameters = list(model.parameters())
    mine, others = torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.SGD(parameters[2:], lr=0.1)
    with attach(model, mine, timeout=LIMIT, gradients="view") as job:
        run_microbatches(Case(), model, 0, (1,) * size)
        job.sync_gradients()
        kept = [one.grad.to_local().clone() for one in parameters[2:]]
        mine.step()
        assert all(one.grad is None for one in parameters[:2])
        for one, gradient in zip(parameters[2:], kept, strict=True):
            assert torch.equal(one.grad.to_local(), gradient)
        others.step()
        others.zero_grad()


def test_gradients_of_others_optimizers_stay() -> None:
    run_torch_ranks(2, unowned)


def left(rank: int, size: int) -> None:
    """After remove() a rank's own training does not change what others still read."""
    model = Case().sharded(mesh_of(size))
    job = attach(model, adamw(model), timeout=LIMIT, parameters="slice", gradients="view")
    expected = whole_parameters(model)
    news = News()
    if rank == 0:
        job.remove()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        news.tell()
    else:
        news.await_from([0])
        model.blocks[0].unshard()
        assert torch.equal(model.blocks[0].up.weight, expected["blocks.0.up.weight"])
        model.blocks[0].reshard()
        job.remove()
    del job
    gc.collect()
    assert slices_mapped() == 0


def test_who_has_left_writes_elsewhere() -> None:
    run_torch_ranks(2, left)


def slices_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:odc")


def in_flight(rank: int, size: int) -> None:
    """A collective that still reads slices when its rank has left and dropped all else keeps their memory."""
    model = Case().sharded(mesh_of(size))
    job = attach(model, adamw(model), timeout=LIMIT, parameters="slice", gradients="view")
    run_microbatches(Case(), model, 0, (1,) * size)
    job.sync_gradients()
    parameter: Any = model.blocks[0].up.weight  # as many rows on each rank
    read = [parameter.detach().to_local(), parameter.grad.to_local()]
    expected = [one.clone() for one in read]
    seen, news = parameter.detach().to_local()[:1], News()
    if rank == 1:  # rank 0 has left before any of its collectives can end
        news.await_from([0])
    everyone = [[torch.empty_like(one) for _ in range(size)] for one in read]
    begun = [dist.all_gather(into, one, async_op=True) for into, one in zip(everyone, read, strict=True)]
    job.remove()
    del job, model, parameter, read
    gc.collect()
    assert slices_mapped() > 0
    news.tell()
    for work, gathered, mine in zip(begun, everyone, expected, strict=True):
        work.wait()
        assert torch.equal(gathered[rank], mine)
    assert torch.equal(seen, expected[0][:1])
    del work, begun, seen
    deadline = time.monotonic() + LIMIT
    while slices_mapped() > 0:  # gloo's thread may let go later
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)


def test_a_collective_keeps_the_slices_that_it_reads() -> None:
    run_torch_ranks(2, in_flight)


def pickled(rank: int, size: int) -> None:
    """A parameter is pickled and copied alone, not with its slice."""
    model = Case().sharded(mesh_of(size))
    job = attach(model, adamw(model), timeout=LIMIT, parameters="slice")
    for parameter in model.parameters():
        local = parameter.detach().to_local()
        assert local.untyped_storage().nbytes() <= (local.numel() + 2 * 13) * local.element_size()
        for other in (copy.deepcopy(local), pickle.loads(pickle.dumps(local))):
            assert torch.equal(other, local)
        file = io.BytesIO()
        torch.save(local, file)
        file.seek(0)
        assert torch.equal(torch.load(file), local)
    job.close()


def test_parameters_are_pickled_alone() -> None:
    run_torch_ranks(2, pickled)


class Adapted(nn.Module):
    """A frozen bf16 base and f32 adapters, gathered as bytes: 1 MiB and 0.5 MiB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(1024, 512, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.adapter = nn.Linear(1024, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x.bfloat16()).float().sum() + self.adapter(x).sum()


def frozen(rank: int, size: int) -> None:
    model = torch.distributed.fsdp.fully_shard(Adapted(), mesh=mesh_of(size))
    optimizer = torch.optim.SGD([model.adapter.weight], lr=0.1)
    before = whole_parameters(model)
    with lines_logged() as lines, attach(model, optimizer, timeout=LIMIT, parameters="slice", gradients="view") as job:
        for _ in range(2):
            model(torch.ones(2, 1024)).backward()
            job.sync_gradients(divisor=1.0)
            optimizer.step()
    after = whole_parameters(model)
    assert torch.equal(after["base.weight"], before["base.weight"])
    assert_near(after["adapter.weight"], before["adapter.weight"] - 0.1 * 2 * 2 * size, 1e-6, "adapter")
    words = "1.00 MiB of slices per rank (0.75 of parameters that live there, 0.25 of sums that are .grad)"
    assert sum(words in line for line in lines) == (rank == 0), lines


def test_a_frozen_base_lives_in_its_slice() -> None:
    run_torch_ranks(2, frozen)


# ---- gradients ----


def views(rank: int, size: int) -> None:
    """From sync to step; a step that was skipped leaves the gradients as they are."""
    model, one = Case().sharded(mesh_of(size)), Case().model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = (1,) * size
    for r in range(size):
        Case().microbatch(one, sample(0, r, 0), 1.0)
    expected = {name: parameter.grad for name, parameter in one.named_parameters()}

    def check(found: dict[str, Tensor | None]) -> None:
        for name, gradient in found.items():
            assert gradient is not None
            assert_near(gradient, expected[name] / 2, 1e-12, name)

    with attach(model, optimizer, timeout=LIMIT, gradients="view") as job:
        run_microbatches(Case(), model, 0, counts)
        assert size == 1 or all(parameter.grad is None for parameter in model.parameters())  # not FSDP2's zeros
        job.sync_gradients(divisor=2.0)
        check(whole_gradients(model))
        model(sample(0, rank, 0))  # publishes
        reshard(model)
        check(whole_gradients(model))
        run_microbatches(Case(), model, 0, counts)
        with pytest.raises(PhaseError, match="second sync_gradients"):
            job.sync_gradients(divisor=2.0)
        job.remove()
    model = Case().sharded(mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job = attach(model, optimizer, timeout=LIMIT, gradients="view")
    run_microbatches(Case(), model, 0, counts)
    job.sync_gradients(divisor=2.0)
    optimizer.step()
    assert size == 1 or all(parameter.grad is None for parameter in model.parameters())
    optimizer.zero_grad()
    run_microbatches(Case(), model, 0, counts)
    job.sync_gradients(divisor=2.0)
    job.remove()
    del job
    gc.collect()
    check(whole_gradients(model))
    finish(model, optimizer)


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_are_views_until_the_step(size: int) -> None:
    run_torch_ranks(size, views)


def kept_gradients(rank: int, size: int) -> None:
    """What docs/fsdp2.md says of a .grad that somebody keeps: it shows the sums of each minibatch, while the
    parameters' own .grad is a copy when the job ends."""
    model = Case().sharded(mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with attach(model, optimizer, timeout=LIMIT, gradients="view") as job:
        for number in range(2):
            run_microbatches(Case(), model, 0, (1,) * size)
            job.sync_gradients(divisor=2.0)
            if number == 0:
                kept = {name: one.grad.to_local() for name, one in model.named_parameters()}
                first = {name: one.clone() for name, one in kept.items()}
            assert same(kept, first)
            if number == 0:
                optimizer.step()
                assert same(kept, first)
                dist.barrier()  # others have not added yet
    own = locals_of({name: one.grad for name, one in model.named_parameters()})
    assert same(own, first)


def test_kept_gradients_go_on_showing_the_sums() -> None:
    run_torch_ranks(2, kept_gradients)  # of two ranks the order of additions does not matter
