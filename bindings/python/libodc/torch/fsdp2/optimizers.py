# SPDX-License-Identifier: Apache-2.0
"""The optimizers of a model: found inside wrappers, and checked to own its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from ...errors import ArgumentError


def unwrapped(optimizer: Any) -> list[Optimizer]:
    """`optimizer`: one, several, None, or something that holds them as .optimizer or .optimizers."""
    if optimizer is None:
        return []
    # Wrappers (such as Accelerate's) may derive from Optimizer without its hooks, so they are unwrapped first.
    inner = getattr(optimizer, "optimizer", None)
    if inner is None:
        inner = getattr(optimizer, "optimizers", None)
    if inner is not None and inner is not optimizer:
        return unwrapped(inner)
    if isinstance(optimizer, Optimizer):
        return [optimizer]
    if isinstance(optimizer, Iterable) and not isinstance(optimizer, (str, bytes)):
        found: list[Optimizer] = []
        for one in optimizer:
            found += [new for new in unwrapped(one) if all(new is not old for old in found)]
        return found
    raise ArgumentError(
        f"optimizer is {type(optimizer).__name__}: give a torch.optim.Optimizer, several, something that holds one as "
        ".optimizer, or None for a model that is only read"
    )


def check_owners(optimizers: list[Optimizer], names: dict[int, str]) -> list[str]:
    """`names`: of the model's trainable sharded parameters, by id. Returns those that no optimizer owns."""
    left = dict(names)
    for index, optimizer in enumerate(optimizers):
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not owned & set(names):
            raise ArgumentError(
                f"optimizer {index} ({type(optimizer).__name__}) owns none of the model's trainable parameters: create "
                "it after fully_shard, which replaces them"
            )
        for one in owned:
            left.pop(one, None)
    return list(left.values())
