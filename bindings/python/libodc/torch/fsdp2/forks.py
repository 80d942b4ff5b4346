# SPDX-License-Identifier: Apache-2.0
"""Slices are not mapped in forked processes, such as a data loader's workers, which may read the model. So before a
fork what lives in slices moves out; the next publish moves parameters in again."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

_count = 0
_leave: list[Callable[[list[Any]], None]] = []
_living: dict[tuple[int, int], weakref.WeakSet[Any]] = {}


def watch(one: Any, leave: Callable[[list[Any]], None]) -> None:
    """Before a fork `leave` is called with all that were given with it by this thread: another one could fork in the
    middle of a step."""
    if leave not in _leave:
        _leave.append(leave)
    _living.setdefault((threading.get_ident(), _leave.index(leave)), weakref.WeakSet()).add(one)


def count() -> int:
    """Of forks that something had to leave its slices for."""
    return _count


def _before_fork() -> None:
    """Python prints an exception, and forks, so all that is here leaves before it is raised."""
    global _count
    raised: BaseException | None = None
    for index, leave in enumerate(_leave):
        if here := list(_living.get((threading.get_ident(), index), ())):
            _count += 1
            with torch.inference_mode(False):  # of an evaluation's loader, whose tensors no step can use
                try:
                    leave(here)
                except BaseException as error:
                    raised = error
                    leave(here)
    if raised is not None:
        raise raised


os.register_at_fork(before=_before_fork)
