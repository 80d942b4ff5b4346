# SPDX-License-Identifier: Apache-2.0
"""A rank's run of train.py: its data, its process group, its experiment."""

from __future__ import annotations

import compute
import emulated
import exact
import order
import torch
from corpus import InputError
from dataset import Dataset, load_dataset
from gpus import check_own_gpus, choose_device
from group import process_group
from job import make_report, on_all
from neighbour import check_cores
from options import Options
from session import Session
from traffic import hosts_of

import libodc


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


def train(options: Options, context: libodc.Context) -> None:
    device, dataset = on_all(context, lambda: _prepare(options, context))
    on_all(context, lambda: _check_equal(context, dataset))
    on_all(context, lambda: make_report(options.report, context))
    backend = "gloo" if options.compare is None else f"cpu:gloo,cuda:{options.compare}"
    with process_group(context, device.type, backend) as mesh:
        if options.compare is not None:
            on_all(context, lambda: check_own_gpus(device))
        session = Session(options, dataset, context, mesh, hosts_of(context))
        experiment = {"compute": compute, "emulated": emulated, "order": order, "exact": exact}[options.experiment]
        experiment.run(session)
