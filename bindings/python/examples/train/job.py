# SPDX-License-Identifier: Apache-2.0
"""A rank's run of train.py: its data, its process group, its experiment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

import compute
import emulated
import exact
import order
import torch
from corpus import InputError
from dataset import Dataset, load_dataset
from experiment import ExperimentError
from gpus import check_own_gpus, choose_device
from group import process_group
from neighbour import check_cores
from options import Options
from schedule import WAIT_SECONDS
from session import Session

import libodc

_LAUNCHERS_SET = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "ODC_JOB", "ODC_RENDEZVOUS", "ODC_SECRET")

_T = TypeVar("_T")


class _ToldElsewhere(Exception):
    """An InputError that another rank tells."""


def _on_all(context: libodc.Context, step: Callable[[], _T]) -> _T:
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


def _prepare(options: Options, context: libodc.Context) -> tuple[torch.device, Dataset]:
    device = choose_device(options, context)
    check_cores(options.slow, context.size)
    return device, load_dataset(options, options.ranks or context.size)


def _check_equal(context: libodc.Context, dataset: Dataset) -> None:
    """Collective."""
    mine = float(dataset.fingerprint())
    highest, lowest = context.all_reduce([mine, -mine], libodc.Reduction.MAX)
    if (highest, -lowest) != (mine, mine):
        raise InputError(f"rank {context.rank} has read other samples than another rank; all must read the same")


def _make_report(options: Options, context: libodc.Context) -> None:
    if context.rank == 0:
        try:
            options.report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--report {options.report} cannot be made: {error.strerror}") from None


def train(options: Options, context: libodc.Context) -> None:
    device, dataset = _on_all(context, lambda: _prepare(options, context))
    _on_all(context, lambda: _check_equal(context, dataset))
    _on_all(context, lambda: _make_report(options, context))
    backend = "gloo" if options.compare is None else f"cpu:gloo,cuda:{options.compare}"
    with process_group(context, device.type, backend) as mesh:
        if options.compare is not None:
            _on_all(context, lambda: check_own_gpus(device))
        session = Session(options, dataset, context, mesh)
        experiment = {"compute": compute, "emulated": emulated, "order": order, "exact": exact}[options.experiment]
        experiment.run(session)


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


def run(options: Options) -> int:
    """The exit status."""
    torch.set_num_threads(1)  # one rank per core
    try:
        context = join()
    except libodc.Error as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    rank = context.rank
    try:
        with context:  # exceptions reach the other ranks, too
            try:
                train(options, context)
            except InputError as error:  # of all ranks
                print(f"train.py: {error}", file=sys.stderr)
                return 2
            except _ToldElsewhere:
                return 2
    except ExperimentError as error:
        if rank == 0:
            print(f"train.py: {error}", file=sys.stderr)
        return 1
    return 0
