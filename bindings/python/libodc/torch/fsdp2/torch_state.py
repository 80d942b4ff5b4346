# SPDX-License-Identifier: Apache-2.0
"""All reads of torch's private attributes: PRIVATE lists them, and attach refuses a torch that lacks some. FSDP2 is
only changed by its public methods, with four exceptions for which there is none: restoring a gradient divide factor of
None, and that nothing was said of resharding (kept_unsharded), dropping accumulated gradients (drop_accumulated), and
giving a shard other memory (gather_from)."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

try:  # their future place in torch
    from torch.distributed.fsdp import AllGather, ReduceScatter  # type: ignore[attr-defined]
except ImportError:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from ...errors import UnsupportedError

__all__ = [
    "AllGather",
    "Buffers",
    "FsdpGroup",
    "Memories",
    "ModuleAttribute",
    "ModuleAttributes",
    "ReduceScatter",
    "Settings",
    "after_backward",
    "check_torch",
    "collectives",
    "current_backward",
    "dtensor_like",
    "fsdp_groups",
    "has_post_accumulate_hook",
    "has_tensor_hook",
    "local_tensor",
    "local_tensors",
    "other_threads_communicate",
    "others_see",
    "quick_gradients",
    "reset",
    "reset_after_exception",
    "set_local_tensor",
]


@dataclass(frozen=True)
class _Read:
    owner: str
    name: str
    for_what: str
    instead: str  # a public alternative


_GETTER = "a getter of FSDPModule, which torch would have to add"
_GROUPS = "FSDPModule.param_groups(), which torch would have to add"

PRIVATE = (
    _Read("FSDPModule", "_get_fsdp_state", "a module's groups", _GROUPS),
    _Read("Module", "_parameters", "the parameter of an attribute", "getattr, which takes ten times as long"),
    _Read("FSDPState", "_is_root", "where to call reset_iter_state()", "calling it on the model, if that is a root"),
    _Read("FSDPState", "_auto_reshard_after_forward", "the setting to restore", _GETTER),
    _Read("FSDPParamGroup", "post_forward_mesh_info", "the setting to restore", _GETTER),
    _Read("FSDPParamGroup", "fsdp_params", "a group's parameters", _GROUPS),
    _Read("FSDPParamGroup", "device", "where a group is gathered", "the device that Comm.allocate is given"),
    _Read("FSDPParamGroup", "_reduce_dtype", "in which type gradients are reduced", "the type that allocate is given"),
    _Read("FSDPParamGroup", "_use_post_forward_mesh", "reshard_after_forward=<int>", "the group the hook is given"),
    _Read("FSDPParamGroup", "mesh_info", "the ranks, and HSDP", "DTensor.device_mesh and placements"),
    _Read("FSDPParamGroup", "_all_gather_comm", "the hook to restore", _GETTER),
    _Read("FSDPParamGroup", "_reduce_scatter_comm", "the hook to restore", _GETTER),
    _Read("FSDPParamGroup", "_all_reduce_hook", "an all-reduce hook", _GETTER),
    _Read("FSDPParamGroup", "gradient_divide_factor", "the factor to divide by, and to restore", _GETTER),
    _Read("FSDPParamGroup", "force_sum_reduction_for_comms", "the setting to restore", _GETTER),
    _Read("FSDPParamGroup", "is_sharded", "whether there is anything to reshard", "reshard(), which takes longer"),
    _Read("FSDPParamGroup", "_all_gather_result", "a gather ahead that is to be dropped", "reset_iter_state()"),
    _Read("FSDPMeshInfo", "shard_mesh_size", "the number of ranks", "DTensor.device_mesh"),
    _Read("FSDPParam", "_module_info", "where a parameter lives", "named_parameters() of the unsharded module"),
    _Read("FSDPParam", "sharded_param", "which parameters are trainable", "named_parameters()"),
    _Read("FSDPParam", "_sharded_param_data", "a shard's memory", "a method that gives a shard other memory"),
    _Read("FSDPParam", "unsharded_accumulated_grad", "gradients to drop", "a reset_iter_state() that drops them"),
    _Read("ParamModuleInfo", "module", "where a parameter lives", "named_parameters() of the unsharded module"),
    _Read("ParamModuleInfo", "param_name", "where a parameter lives", "named_parameters() of the unsharded module"),
    _Read("DTensor", "_local_tensor", "the local shard", "to_local() under no_grad, which takes longer"),
    _Read("DTensor", "_spec", "how a gradient is divided", "DTensor.from_local(), whose tensor is another object"),
    _Read("Tensor", "_post_accumulate_grad_hooks", "an optimizer in backward", "a getter of Tensor"),
    _Read("Tensor", "_backward_hooks", "a hook that reduces a gradient", "a getter of Tensor"),
    _Read("fsdp_collectives", "DefaultAllGather", "another communication hook", _GETTER),
    _Read("fsdp_collectives", "DefaultReduceScatter", "another communication hook", _GETTER),
    _Read("torch._C", "_current_graph_task_id", "which backward runs", "a context of autograd with its number"),
    _Read("torch._C", "DisableTorchFunctionSubclass", "many .grad at once", "nothing: it would take twice as long"),
    _Read("torch._C", "_storage_Use_Count", "whether others see a parameter's memory", "a getter of UntypedStorage"),
    _Read("UntypedStorage", "_cdata", "whether others see a parameter's memory", "as above"),
    _Read("ExecutionEngine", "queue_callback", "the end of a backward", "torch.autograd.graph, if it had such a hook"),
    _Read("distributed_c10d._world", "pg_map", "how many collectives ran", "nothing: they would not be counted"),
    _Read("ProcessGroup", "_get_sequence_number_for_group", "how many collectives ran", "nothing, as above"),
)
"""By class or module. A name that only some versions of torch have is checked where it is read."""


_LATE = ("_reduce_dtype",)  # set by the first unshard, and checked when it is read


def check_torch(model: nn.Module) -> None:
    """Raises if torch lacks something listed in PRIVATE. A model without FSDP2 shows only a part of it."""
    owners: dict[str, Any] = {
        "FSDPModule": FSDPModule,
        "Module": model,
        "Tensor": torch.Tensor,
        "fsdp_collectives": _collectives_module(),
        "torch._C": torch._C,
        "UntypedStorage": torch.UntypedStorage,
        "ExecutionEngine": getattr(torch.autograd.Variable, "_execution_engine", None),
        "distributed_c10d._world": getattr(dist.distributed_c10d, "_world", None),
        "ProcessGroup": dist.ProcessGroup,
    }
    module = next(
        (one for one in model.modules() if isinstance(one, FSDPModule) and any(True for _ in _groups_of(one))), None
    )
    if module is not None:
        raw = next(_groups_of(module))
        parameter = next(iter(getattr(raw, "fsdp_params", ())), None)
        owners |= {
            "FSDPState": module._get_fsdp_state(),
            "FSDPParamGroup": raw,
            "FSDPParam": parameter,
            "ParamModuleInfo": getattr(parameter, "_module_info", None),
            "DTensor": getattr(parameter, "sharded_param", None),
        }
        mesh_info = getattr(raw, "mesh_info", None)
        if not hasattr(mesh_info, "replicate_process_group"):  # replicate() shards nothing
            owners["FSDPMeshInfo"] = mesh_info
    _check(owners, [read for read in PRIVATE if read.owner in owners and read.name not in _LATE])


def _check(owners: dict[str, Any], reads: list[_Read]) -> None:
    missing = [
        f"{read.owner}.{read.name} is not there ({read.for_what})"
        for read in reads
        if not hasattr(owners[read.owner], read.name)
    ]
    if missing:
        raise UnsupportedError(
            f"libodc.torch.fsdp2 cannot read what it needs from torch {torch.__version__}: {'; '.join(missing)}. It "
            "was run with torch 2.9.1, 2.13.0 and 2.15.0"
        )


def _groups_of(module: FSDPModule) -> Iterator[Any]:
    """FSDP2's own groups of a module."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    # Until torch 2.11 a module had one group.
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [one for one in (getattr(state, "_fsdp_param_group", None),) if one is not None]
    yield from groups


def _collectives_module() -> Any:
    try:
        return importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    except ImportError:
        return None


class Buffers:
    """The allocate method of AllGather and ReduceScatter: memory as in FSDP2."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


@dataclass(frozen=True)
class ModuleAttribute:
    """The attribute of a module that holds a parameter. The object changes: sharded, unsharded, replaced by loading."""

    module: nn.Module
    name: str

    def get(self) -> nn.Parameter:
        parameter: Any = self.module._parameters.get(self.name)
        return parameter  # type: ignore[no-any-return]


class ModuleAttributes:
    """Many of them. Loops of the interpreter's own, since bytecode takes longer."""

    def __init__(self, attributes: Iterable[ModuleAttribute]) -> None:
        both = [(one.module, one.name) for one in attributes]
        self._modules, self._names = [module for module, _ in both], [name for _, name in both]

    def get(self) -> list[Any]:
        """As that of each."""
        return list(map(dict.get, map(attrgetter("_parameters"), self._modules), self._names))


@dataclass(frozen=True)
class Settings:
    """The settings of a group that attach changes, to be restored."""

    all_gather: AllGather
    reduce_scatter: ReduceScatter
    divide_factor: float | None
    force_sum: bool


class FsdpGroup:
    """The parameters that FSDP2 gathers and reduces together."""

    def __init__(self, module: FSDPModule, name: str, raw: Any) -> None:
        self.module = module
        self.name = name
        self._raw = raw  # also read by functions of this file

    @property
    def attributes(self) -> list[ModuleAttribute]:
        infos = [one._module_info for one in self._raw.fsdp_params]
        return [ModuleAttribute(info.module, info.param_name) for info in infos]

    @property
    def reduce_dtype(self) -> torch.dtype | None:
        """The dtype to which gradients are cast before the reduction; None: not cast. Known after the first unshard."""
        _check({"FSDPParamGroup": self._raw}, [read for read in PRIVATE if read.name in _LATE])
        if self._raw._reduce_dtype is not None:
            return self._raw._reduce_dtype  # type: ignore[no-any-return]
        # In torch 2.15 each gradient has its own dtype, and the widest is used.
        trainable = [one for one in self._raw.fsdp_params if one.sharded_param.requires_grad]
        given = {getattr(one, "unsharded_grad_dtype", None) for one in trainable}
        types = [one for one in given if one is not None]
        return functools.reduce(torch.promote_types, types) if types else None

    @property
    def device(self) -> torch.device:
        """The device on which it is gathered; with CPU offload its shards are elsewhere."""
        device: torch.device = self._raw.device
        return device

    @property
    def is_sharded(self) -> bool:
        """Whether nothing is gathered."""
        return bool(self._raw.is_sharded)

    @property
    def gathers_by_extension(self) -> bool:
        return any(hasattr(local_tensor(attribute.get()), "fsdp_pre_all_gather") for attribute in self.attributes)

    @property
    def reshards_to_fewer_ranks(self) -> bool:
        """fully_shard(reshard_after_forward=<int>)."""
        return bool(self._raw._use_post_forward_mesh)

    @property
    def replicated(self) -> bool:
        """HSDP or replicate()."""
        return hasattr(self._raw.mesh_info, "replicate_process_group")

    @property
    def all_reduce_hook(self) -> Any:
        return self._raw._all_reduce_hook

    @property
    def foreign_comm(self) -> Any:
        """A communication hook that is not FSDP2's own default."""
        module = _collectives_module()
        for comm in (self._raw._all_gather_comm, self._raw._reduce_scatter_comm):
            if type(comm) not in (module.DefaultAllGather, module.DefaultReduceScatter):
                return comm
        return None

    @property
    def settings(self) -> Settings:
        raw = self._raw
        return Settings(
            raw._all_gather_comm,
            raw._reduce_scatter_comm,
            raw.gradient_divide_factor,
            raw.force_sum_reduction_for_comms,
        )

    @property
    def ranks(self) -> int:
        return int(self._raw.mesh_info.shard_mesh_size)

    @contextmanager
    def kept_unsharded(self) -> Iterator[None]:
        """Forwards in the block leave it unsharded; at its end it is sharded."""
        state = self.module._get_fsdp_state()
        after, chosen = self._raw.post_forward_mesh_info is not None, state._auto_reshard_after_forward
        self.module.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            # FSDP2 finds its root in the first forward, and keeps that unsharded if it was not told otherwise.
            self.module.set_reshard_after_forward(after and not (chosen and state._is_root), recurse=False)
            state._auto_reshard_after_forward = chosen
            reset([self])

    @functools.cached_property
    def _by_attribute(self) -> dict[ModuleAttribute, Any]:
        return dict(zip(self.attributes, self._raw.fsdp_params, strict=True))

    def memory(self, attribute: ModuleAttribute) -> torch.Tensor:
        """From where FSDP2 gathers a sharded parameter, before it converts it: flat, padded."""
        memory: torch.Tensor = self._by_attribute[attribute]._sharded_param_data
        return memory

    def memories(self) -> list[torch.Tensor]:
        """As memory() of each attribute."""
        return [one._sharded_param_data for one in self._raw.fsdp_params]

    def sharded(self, attribute: ModuleAttribute) -> nn.Parameter:
        """The sharded parameter, also while the attribute has the unsharded one."""
        parameter: nn.Parameter = self._by_attribute[attribute].sharded_param
        return parameter

    def gather_from(self, attribute: ModuleAttribute, memory: torch.Tensor) -> None:
        self._by_attribute[attribute]._sharded_param_data = memory

    def drop_accumulated(self) -> None:
        """Drops gradients kept by set_requires_gradient_sync(False), which FSDP2's reset_iter_state() does not."""
        for one in self._raw.fsdp_params:
            one.unsharded_accumulated_grad = None

    def has(self, settings: Settings) -> bool:
        raw = self._raw
        return (
            raw._all_gather_comm is settings.all_gather
            and raw._reduce_scatter_comm is settings.reduce_scatter
            and raw.gradient_divide_factor == settings.divide_factor
            and raw.force_sum_reduction_for_comms == settings.force_sum
        )

    def apply(self, settings: Settings) -> None:
        self.module.set_custom_all_gather(settings.all_gather)
        self.module.set_custom_reduce_scatter(settings.reduce_scatter)
        self.module.set_gradient_divide_factor(settings.divide_factor)  # type: ignore[arg-type]
        self.module.set_force_sum_reduction_for_comms(settings.force_sum)


# These take several groups at once: there may be hundreds, and each call costs.


def reset(groups: Iterable[FsdpGroup]) -> None:
    """Reshards, and drops unused parameters that were gathered ahead: they would be taken for current ones."""
    for one in groups:
        raw = one._raw
        if raw._all_gather_result is not None:
            one.module.unshard()
        elif raw.is_sharded:
            continue
        one.module.reshard()


class Memories:
    """What FSDP2 gathers of groups."""

    def __init__(self, groups: Iterable[FsdpGroup]) -> None:
        self._parameters = [one for group in groups for one in group._raw.fsdp_params]

    def ids(self) -> list[int]:
        return list(map(id, map(attrgetter("_sharded_param_data"), self._parameters)))


def local_tensor(tensor: torch.Tensor) -> Any:
    """What to_local() of a DTensor returns under no_grad, at a tenth of its time; another tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def local_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    try:
        return list(map(attrgetter("_local_tensor"), tensors))
    except AttributeError:  # others are among them
        pass
    return [getattr(one, "_local_tensor", one) for one in tensors]


def quick_gradients() -> AbstractContextManager[None]:
    """In the block .grad of a DTensor takes half the time: torch does not look for a __torch_function__, which DTensor
    has turned off anyway."""
    made: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return made


def set_local_tensor(tensor: Any, local: torch.Tensor) -> None:
    """Gives a DTensor other memory."""
    tensor._local_tensor = local


def dtensor_like(like: Any, local: torch.Tensor) -> torch.Tensor:
    """A new DTensor, divided as `like`. One detached from `like` would share its storage and version counter, and
    torch.compile would take the two for aliases."""
    made: Any = DTensor
    return made(local, like._spec, requires_grad=False)  # type: ignore[no-any-return]


def others_see(storage: torch.UntypedStorage) -> bool:
    """Whether a tensor has this memory, in Python or inside torch. The caller has the storage itself only."""
    return int(torch._C._storage_Use_Count(storage._cdata)) > 1


def has_post_accumulate_hook(parameter: torch.Tensor) -> bool:
    return bool(parameter._post_accumulate_grad_hooks)


def has_tensor_hook(parameter: torch.Tensor) -> bool:
    """Set by Tensor.register_hook."""
    return bool(parameter._backward_hooks)


def fsdp_groups(model: nn.Module) -> Iterator[tuple[str, list[FsdpGroup]]]:
    """For each FSDP2 module with parameters of its own: its name and groups, in the order of model.named_modules(),
    which is the same on all ranks. Modules that share a group (`fully_shard([a, b])`) come once."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        raw_groups = list(_groups_of(module))
        if not raw_groups or id(raw_groups[0]) in seen:
            continue
        seen.add(id(raw_groups[0]))
        yield name, [FsdpGroup(module, name or "(root)", raw) for raw in raw_groups]


def reset_after_exception(groups: list[FsdpGroup]) -> None:
    """FSDP2's own reset of each root after a forward or backward that has raised; torch 2.13 has it."""
    for group in groups:
        if hasattr(group.module, "reset_iter_state") and group.module._get_fsdp_state()._is_root:
            group.module.reset_iter_state()


def current_backward() -> int | None:
    """The number of the backward that the calling hook runs in."""
    number: int = torch._C._current_graph_task_id()
    return None if number == -1 else number


def after_backward(call: Callable[[], None]) -> None:
    """Called by a hook that runs in a backward: `call` runs when it has finished, and not if it raises."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def other_threads_communicate() -> bool:
    """Whether another thread is inside torch.distributed now, such as one that writes a checkpoint."""
    mine = threading.get_ident()
    frames: list[FrameType | None] = [frame for thread, frame in sys._current_frames().items() if thread != mine]
    for frame in frames:
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("torch.distributed."):
                return True
            frame = frame.f_back
    return False


def collectives() -> int:
    """How many collectives this rank has begun on all its process groups; groups that do not count are left out."""
    count = 0
    one: Any
    for one in dist.distributed_c10d._world.pg_map:
        try:
            count += one._get_sequence_number_for_group()
        except (RuntimeError, AttributeError):
            continue
    return count
