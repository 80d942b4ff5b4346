# SPDX-License-Identifier: Apache-2.0
"""Two steps of FSDP2 in the process from which ranks are forked: what torch imports, registers and keeps at the first
operations on DTensors takes a quarter of a small rank's processor time."""

from torch_ranks import dist, torch  # skips where there is no torch

# isort: split
from fsdp2_models import Case, adamw, mesh_of, sample, square_loss, whole
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

# How an operation is sharded is kept for the mesh, with the mesh, which knows its rank: of no size that a test has.
RANKS = 97


def train() -> None:
    if torch.cuda.is_available():  # autograd's threads for GPUs are not forked
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with torch.random.fork_rng(devices=[]):  # tests begin with torch's default numbers
        model = Case().sharded(mesh_of(RANKS))
        optimizer = adamw(model)
        for _ in range(2):
            square_loss(model, sample(0, 0, 0), 1.0)
            whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
    torch.set_num_threads(threads)
