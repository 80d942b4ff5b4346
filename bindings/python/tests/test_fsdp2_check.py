# SPDX-License-Identifier: Apache-2.0
"""What attach detects by itself: check=True, the probe of the layout, and what it prints and logs."""

import ast
import io
import logging
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import run_torch_ranks, torch  # skips where there is no torch

# isort: split
import torch.distributed.fsdp._fully_shard._fsdp_param_group as fsdp_internals
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    adamw,
    assert_equal_steps,
    by_one_process,
    fsdp_modules,
    mesh_of,
    over_odc,
    run_microbatches,
    shard_blocks,
    square_loss,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import libodc
from libodc.torch.fsdp2 import attach, torch_state

Tensor = torch.Tensor
COUNTS = (2, 0, 1)


def heard(level: int = logging.INFO) -> list[str]:
    """What the package logs from now on, without the library's lines, which begin with the time."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.getMessage()[0].isdigit():
                lines.append(record.getMessage())

    logging.getLogger("libodc").addHandler(Handler(level))
    logging.getLogger("libodc").setLevel(level)
    return lines


# ---- check=True ----


def checked(rank: int, size: int) -> None:
    said = io.StringIO()
    with redirect_stderr(said):
        over_odc(Case(), mesh_of(size), UNEVEN[size], check=True)
        low = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for minibatches in (UNEVEN[size], [(0,) * size, (1,) * size]):
            case = Case(
                shard=partial(shard_blocks, mp_policy=low), microbatch=lambda m, x, w: square_loss(m, x.float(), w)
            )
            over_odc(case, mesh_of(size), minibatches, check=True)
    assert said.getvalue().count("passed: the first minibatch's gradients equal those") == (3 if rank == 0 else 0)


@pytest.mark.parametrize("size", [1, 3])
def test_check(size: int) -> None:
    run_torch_ranks(size, checked)


def lose(add: Callable[[Any, Tensor], None], shard: Any, full: Tensor) -> None:
    pass


def double(add: Callable[[Any, Tensor], None], shard: Any, full: Tensor) -> None:
    add(shard, full)
    add(shard, full)


def shift(add: Callable[[Any, Tensor], None], shard: Any, full: Tensor) -> None:
    add(shard, full.roll(1))


def not_a_number(add: Callable[[Any, Tensor], None], shard: Any, full: Tensor) -> None:
    add(shard, full * torch.nan)


def fails_the_check(rank: int, size: int) -> None:
    """One of rank 0's additions goes wrong."""
    add = libodc.Shard.scatter_add
    for fault in (lose, double, shift, not_a_number):
        calls = iter(range(1_000_000))

        def faulty(shard: Any, full: Tensor, fault: Any = fault, calls: Any = calls) -> None:
            fault(add, shard, full) if rank == 0 and next(calls) == 2 else add(shard, full)

        model = Case().sharded(mesh_of(size))
        job = attach(model, adamw(model), timeout=LIMIT, check=True)
        libodc.Shard.scatter_add = faulty  # type: ignore[method-assign]
        run_microbatches(Case(), model, 0, COUNTS[:size])
        with pytest.raises(
            libodc.InternalError,
            match=r'differ from those of plain FSDP2: on rank 0 that of ".+" in FSDP group ".+" by',
        ):
            job.sync_gradients(divisor=3.0)
        libodc.Shard.scatter_add = add  # type: ignore[method-assign]
        job.remove()


def test_check_finds_wrong_additions() -> None:
    run_torch_ranks(3, fails_the_check)


# ---- the probe ----


def reordered(rank: int, size: int) -> None:
    """The layout is probed: another order inside FSDP2's groups makes no difference."""

    def shard(model: Any, mesh: DeviceMesh) -> None:
        shard_blocks(model, mesh)
        for module in fsdp_modules(model):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                group.fsdp_params.reverse()

    case = Case(shard=shard)
    assert_equal_steps(over_odc(case, mesh_of(size), UNEVEN[size]), by_one_process(case, UNEVEN[size]))


def test_another_order_in_a_group() -> None:
    run_torch_ranks(3, reordered)


def swap_two(parameters: list[Any]) -> None:
    """Errors within a parameter."""
    gathered = parameters[0].all_gather_outputs[0]
    gathered[[0, -1]] = gathered[[-1, 0]]


def interleave(parameters: list[Any]) -> None:
    """The ranks' parts of a parameter, element by element."""
    gathered = parameters[0].all_gather_outputs[0]
    gathered.copy_(gathered.view(3, -1).t().reshape(-1))


def repeat(parameters: list[Any]) -> None:
    """One parameter has the codes of another."""
    one, other = (parameter.all_gather_outputs[0] for parameter in (parameters[0], parameters[-1]))
    numel = min(one.numel(), other.numel())
    other[:numel].copy_(one[:numel])


def leave_out(parameters: list[Any]) -> None:
    parameters[-1].all_gather_outputs[0].zero_()


def misplaced(rank: int, size: int) -> None:
    """An FSDP2 with an unknown layout of parameters: attach fails and leaves the model unchanged."""
    copy_out = fsdp_internals.foreach_all_gather_copy_out
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    for change in (swap_two, interleave, repeat, leave_out):

        def changed(result: Any, parameters: list[Any], group: Any, change: Any = change) -> None:
            copy_out(result, parameters, group)
            with torch.autograd._unsafe_preserve_version_counter(tuple(parameters[0].all_gather_outputs)):
                change(parameters)

        fsdp_internals.foreach_all_gather_copy_out = changed
        with pytest.raises(libodc.UnsupportedError, match=r'layout of FSDP group ".+" could not be derived'):
            attach(model, optimizer, timeout=LIMIT)
        fsdp_internals.foreach_all_gather_copy_out = copy_out
    with attach(model, optimizer, timeout=LIMIT) as job:
        run_microbatches(Case(), model, 0, COUNTS)
        job.sync_gradients(divisor=3.0)


def test_probe_finds_unknown_layouts() -> None:
    run_torch_ranks(3, misplaced)


class Long(nn.Module):
    """Parameters longer than many periods of the codes, with a remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(1031, 4099), nn.Linear(3, 5)])


class Waits(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operations for which the host would wait for a GPU."""

    NAMES = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name() in self.NAMES
        return func(*args, **(kwargs or {}))


def verifies(rank: int, size: int) -> None:
    """The host waits a few times per parameter, however long it is, and still every element is compared."""
    waits = Waits()
    model = Case(Long).sharded(mesh_of(size))
    optimizer = adamw(model)
    with waits:
        job = attach(model, optimizer, timeout=LIMIT)
    assert waits.count <= 8 * len(list(model.parameters())), waits.count
    job.remove()
    copy_out = fsdp_internals.foreach_all_gather_copy_out

    for at in (0, 65520, 65521, 300_000, 1031 * 4099 - 1):

        def changed(result: Any, parameters: list[Any], group: Any, at: int = at) -> None:
            copy_out(result, parameters, group)
            with torch.autograd._unsafe_preserve_version_counter(tuple(parameters[0].all_gather_outputs)):
                parameters[0].all_gather_outputs[0].view(-1)[at % parameters[0].all_gather_outputs[0].numel()] += 1

        fsdp_internals.foreach_all_gather_copy_out = changed
        with pytest.raises(libodc.UnsupportedError, match="could not be derived"):
            attach(model, optimizer, timeout=LIMIT)
        fsdp_internals.foreach_all_gather_copy_out = copy_out


def test_each_parameter_is_verified_with_one_wait() -> None:
    run_torch_ranks(2, verifies)


# ---- what is read of torch's private state ----


def changed_torch(rank: int, size: int) -> None:
    """attach reports each missing private name, and the model is unchanged."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    group = model._get_fsdp_state()._fsdp_param_groups[0]
    owners = {
        "FSDPState": model._get_fsdp_state(),
        "FSDPParamGroup": group,
        "FSDPMeshInfo": group.mesh_info,
        "FSDPParam": group.fsdp_params[0],
        "ParamModuleInfo": group.fsdp_params[0]._module_info,
        "torch._C": torch._C,
        "distributed_c10d._world": torch.distributed.distributed_c10d._world,
    }
    missed = 0
    for read in torch_state.PRIVATE:
        owner = owners.get(read.owner)
        if owner is None or read.name not in vars(owner):
            continue
        kept = vars(owner).pop(read.name)
        with pytest.raises(libodc.UnsupportedError) as caught:
            attach(model, optimizer, timeout=LIMIT)
        vars(owner)[read.name] = kept
        assert f"needs from torch {torch.__version__}: " in str(caught.value)
        assert f"{read.owner}.{read.name} is not there (" in str(caught.value)
        missed += 1
    assert missed >= 15
    attach(model, optimizer, timeout=LIMIT).close()


def test_what_a_torch_lacks_is_named() -> None:
    run_torch_ranks(2, changed_torch)


def private_names(source: Path) -> set[str]:
    """Attributes with an underscore that are read from objects other than self."""
    nodes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Attribute)]
    return {
        node.attr
        for node in nodes
        if node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }


def test_all_private_names_are_in_one_list() -> None:
    here = Path(torch_state.__file__)
    listed = {read.name for read in torch_state.PRIVATE}
    # With what is read of them; Python's own; and FSDP2's group, which only this file reads.
    owners = {"_C", "_execution_engine", "_world", "_current_frames", "_raw"}
    assert private_names(here) <= listed | owners
    for source in here.parent.glob("*.py"):
        if source != here:
            assert not private_names(source) & (listed | owners), source


# ---- where a reduction has the gradients ----


def other_reduction(rank: int, size: int) -> None:
    """An FSDP2 that reduces in another order than it gathers: the first gradients reveal it."""
    reduce = fsdp_internals.foreach_reduce

    def reversed_reduce(parameters: list[Any], gradients: list[Tensor], *others: Any, **named: Any) -> Any:
        return reduce(parameters[::-1], gradients[::-1], *others, **named)

    model = Case().sharded(mesh_of(size))
    job = attach(model, adamw(model), timeout=LIMIT)
    fsdp_internals.foreach_reduce = reversed_reduce
    with pytest.raises(libodc.InternalError, match=r'FSDP group ".+" reduces the gradient of ".+" elsewhere'):
        run_microbatches(Case(), model, 0, (1,) * size)
    job.remove()


def test_another_order_of_reduction_is_found() -> None:
    run_torch_ranks(2, other_reduction)


# ---- what is logged ----


class Large(nn.Module):
    """4 MiB of frozen and 2 MiB of trainable parameters in f32."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 512, bias=False)])
        self.blocks[0].requires_grad_(False)


class Adapted(nn.Module):
    """Of two types in one group."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.Linear(8, 8))])
        self.blocks[0][0].requires_grad_(False)


def logs(rank: int, size: int) -> None:
    model = Case(Large).sharded(mesh_of(size))
    model.set_gradient_divide_factor(1.0)
    for optimizer, expected in (
        (adamw(model), "gathered as float32, gradients added as float32, divided by 2, 4.00 MiB of slices"),
        (None, "gathered as float32, gradients added as nothing (read only), divided by 2, 3.00 MiB of slices"),
    ):
        lines = heard()
        attach(model, optimizer, timeout=LIMIT).close()
        if rank == 0:
            assert [line for line in lines if expected in line and "2 groups over 2 ranks" in line] == lines != []
        else:
            assert lines == []
    lines = heard()
    adapted = Case(Adapted).sharded(mesh_of(size))
    attach(adapted, adamw(adapted), timeout=LIMIT).close()
    assert rank != 0 or "1 groups over 2 ranks, parameters gathered as uint8, gradients added as float32" in lines[0]


def prints(rank: int, size: int) -> None:
    """One line of rank 0, unless something says what is shown."""
    logger = logging.getLogger("libodc")
    logging.getLogger().handlers.clear()  # pytest's
    words = "odc: attach: 2 groups over 2 ranks, 4.00 MiB of slices per rank (3.00 of parameters that live there, 1.00"
    settings: list[tuple[Callable[[], None], bool]] = [
        (lambda: os.environ.pop("ODC_LOG", None), True),
        (logging.disable, False),
        (lambda: (logging.disable(logging.NOTSET), setattr(logger, "disabled", True)), False),
        (lambda: (setattr(logger, "disabled", False), os.environ.update(ODC_LOG="warn")), False),
        (lambda: (os.environ.pop("ODC_LOG"), logger.handlers.clear(), logger.setLevel(logging.ERROR)), False),
        (lambda: (logger.setLevel(logging.NOTSET), logging.basicConfig()), False),
    ]
    for decide, prints in settings:
        decide()
        model = Case(Large).sharded(mesh_of(size))
        with redirect_stderr(io.StringIO()) as printed, attach(model, adamw(model), timeout=LIMIT):
            pass
        lines = printed.getvalue().splitlines()
        assert [line.startswith(words) for line in lines] == [True] * (prints and rank == 0), lines


def test_what_is_printed_at_attach() -> None:
    run_torch_ranks(2, prints)


def test_what_is_logged_at_attach() -> None:
    run_torch_ranks(2, logs)
