# SPDX-License-Identifier: Apache-2.0
"""Moves an f32 tensor through torch.distributed's gloo as mpi_peers.c does through MPI, between the ranks that
tests/harness/hosts.sh starts: all_gather_into_tensor and reduce_scatter_tensor. Rank 0 prints a JSON object a line:
{"op","ranks","bytes","gbps"}; GB/s are the tensor's bytes by the time from the first rank's start to the last one's
end, the median of all rounds. usage: gloo_peers.py [ROUNDS [BYTES]]"""

import json
import os
import statistics
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "net0")
import torch
import torch.distributed as dist


def seconds_of(operate):
    dist.barrier()
    times = torch.tensor([-time.monotonic(), 0.0], dtype=torch.float64)
    operate()
    times[1] = time.monotonic()
    dist.all_reduce(times, dist.ReduceOp.MAX)  # the first start, and the last end
    return float(times.sum())


def main(rounds=15, size_bytes=64 << 20):
    ranks, rank = int(os.environ["ODC_SIZE"]), int(os.environ["ODC_RANK"])
    dist.init_process_group("gloo", init_method=f"tcp://{os.environ['ODC_RENDEZVOUS']}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    full = torch.ones(int(size_bytes) // 4 // ranks * ranks)
    own = torch.ones(full.numel() // ranks)
    for op, operate in (
        ("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(full, own)),
        ("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(own, full)),
    ):
        operate()
        median = statistics.median(seconds_of(operate) for _ in range(int(rounds)))
        if rank == 0:
            print(json.dumps({"op": op, "ranks": ranks, "bytes": full.nbytes, "gbps": full.nbytes / median * 1e-9}))
    dist.destroy_process_group()


main(*sys.argv[1:])
