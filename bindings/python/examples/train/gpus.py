# SPDX-License-Identifier: Apache-2.0
"""The GPU of each rank: its own if the host has enough, otherwise shared."""

from __future__ import annotations

import torch
from corpus import InputError
from options import Options
from torch import distributed

import libodc


def choose_device(options: Options, context: libodc.Context) -> torch.device:
    """Raises InputError for options that contradict each other, and without a GPU."""
    if options.compare is not None and options.device != "cuda":
        raise InputError(f"--compare {options.compare} compares GPUs: give --device cuda, too")
    if options.device != "cuda":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise InputError("--device cuda: torch sees no GPU (nvidia-smi and CUDA_VISIBLE_DEVICES say why)")
    on_this_host = [rank for rank in range(context.rank) if not context.route(rank).between_hosts]
    device = torch.device("cuda", len(on_this_host) % count)
    torch.cuda.set_device(device)
    # Otherwise a mesh chooses a device by itself.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return device


def check_own_gpus(device: torch.device) -> None:
    """Collective: NCCL needs one GPU per rank."""
    mine = str(torch.cuda.get_device_properties(device).uuid)
    everyone: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(everyone, mine)
    for rank, gpu in enumerate(everyone):
        if (first := everyone.index(gpu)) < rank:
            raise InputError(
                f"--compare nccl: ranks {first} and {rank} share a GPU, and NCCL needs one for each rank: start as "
                "many ranks as there are GPUs, or leave --compare out"
            )


def gpu_text(ranks: int) -> str:
    count = torch.cuda.device_count()
    shared = "one each" if count >= ranks else f"{count} on this host"
    return f"{torch.cuda.get_device_name()}, {shared}"
