# SPDX-License-Identifier: Apache-2.0
"""What the examples' ranks have in common: how they join, and how they end where something was wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from corpus import InputError
from experiment import ExperimentError
from schedule import WAIT_SECONDS

import libodc

_LAUNCHERS_SET = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "ODC_JOB", "ODC_RENDEZVOUS", "ODC_SECRET")

_T = TypeVar("_T")


class _ToldElsewhere(Exception):
    """An InputError that another rank tells."""


def on_all(context: libodc.Context, step: Callable[[], _T]) -> _T:
    """Collective. Where `step` raises an InputError on some ranks, the first of them raises it, and the others
    _ToldElsewhere: no rank waits for one that has ended, and the reason is told once."""
    rank, size = context.rank, context.size
    try:
        result, found = step(), None
    except InputError as error:
        found = error
    [first] = context.all_reduce([-rank if found else -size], libodc.Reduction.MAX)
    if -first == size:
        return result
    raise found if found and -first == rank else _ToldElsewhere


def make_report(report: Path, context: libodc.Context) -> None:
    """On rank 0."""
    if context.rank == 0:
        try:
            report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--report {report} cannot be made: {error.strerror}") from None


def join() -> libodc.Context:
    """Without a launcher this process is the only rank. Raises libodc.Error, also if some of what a launcher sets is
    there."""
    try:
        return libodc.init(timeout=WAIT_SECONDS)
    except libodc.RendezvousError as error:
        if "no launcher is found" not in str(error):
            raise
        if half := [name for name in _LAUNCHERS_SET if os.environ.get(name)]:
            raise libodc.RendezvousError(f"{error} ({half[0]} is set, but not rank and size)") from None
    os.environ |= {"ODC_RANK": "0", "ODC_SIZE": "1"}  # for the groups of the collective schedule, too
    return libodc.init(timeout=WAIT_SECONDS)


def run(program: str, train: Callable[[libodc.Context], None]) -> int:
    """This rank's job; the exit status. `program`: in front of what is wrong."""
    torch.set_num_threads(1)  # one rank per core
    os.environ.setdefault("ODC_LOG", "warn")  # several models are attached: what each takes is no part of the output
    try:
        context = join()
    except libodc.Error as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    rank = context.rank
    try:
        with context:  # exceptions reach the other ranks, too
            try:
                train(context)
            except InputError as error:  # of all ranks
                print(f"{program}: {error}", file=sys.stderr)
                return 2
            except _ToldElsewhere:
                return 2
    except ExperimentError as error:
        if rank == 0:
            print(f"{program}: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # of this rank: the report cannot be written
        if isinstance(error, libodc.Error):
            raise
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0
