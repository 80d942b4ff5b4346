# SPDX-License-Identifier: Apache-2.0
"""PyTorch FSDP2 over On-Demand Communication.

job = libodc.torch.fsdp2.attach(model, optimizer)      # after fully_shard; model code stays as it is
for minibatch in sampler:
    for microbatch in job.microbatches(minibatch):  # any number on each rank, none too
        loss(model, microbatch).backward()
    job.sync_gradients()                            # the one sync; fills .grad
    clip_grad_norm_(...); optimizer.step(); optimizer.zero_grad()
"""

from .attach import attach
from .job import Job
from .report import MinibatchReport

__all__ = ["Job", "MinibatchReport", "attach"]
