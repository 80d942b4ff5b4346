# SPDX-License-Identifier: Apache-2.0
"""Parameters that are edited outside of optimizer.step(): published, or told."""

from torch_ranks import dist, run_torch_ranks, torch
from two_layers import backward, plain, raises, sharded, training

import libodc
from libodc.torch import fsdp2

DTensor = torch.distributed.tensor.DTensor
MixedPrecisionPolicy = torch.distributed.fsdp.MixedPrecisionPolicy


def edits(rank: int, size: int) -> None:
    with training(size) as (job, model, optimizer):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().add_(1)
        with raises(libodc.PhaseError, 'of FSDP group "(root)" has changed since it was published', "job.publish()"):
            model(torch.ones(2, 4))
    for where in ("copy", "slice"):  # a reference is never synced
        model = sharded(size, reshard_after_forward=True)  # else the root stays whole between forwards
        with fsdp2.attach(model, timeout=60, parameters=where) as job, torch.no_grad():
            for _ in range(2):
                model(torch.ones(2, 4))
                for parameter in model.parameters():
                    parameter.data.to_local().mul_(2)
                with raises(libodc.PhaseError, "has changed since it was published", "job.publish()"):
                    model(torch.ones(2, 4))
                job.publish()
    for dtype in (torch.float32, torch.bfloat16):  # gathered as it is kept, and converted
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        model = sharded(size, plain(7), mp_policy=policy)  # the root stays gathered after a forward
        with fsdp2.attach(model, timeout=60) as job, torch.no_grad():
            inputs = torch.ones(2, 4)
            before = model(inputs)
            job.publish()  # an evaluation edits nothing
            model(inputs)
            for part in (model[2].weight, model[2].weight[0], model[2].bias[2:]):  # the last two on one rank each
                part.mul_(2)
                with raises(libodc.PhaseError, "was edited while it was gathered", "job.editing()"):
                    job.publish()
                model(inputs)
            model[2].weight.mul_(2)
            with raises(libodc.PhaseError, "was edited while it was gathered"), job.editing():
                pass
            model(inputs)
            with job.editing():
                assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
            torch.testing.assert_close(model(inputs), before)  # the copies are dropped
    for where in ("copy", "slice"):
        model = sharded(size)
        kept = list(model.parameters())
        with fsdp2.attach(model, timeout=60, parameters=where) as job, torch.no_grad():
            model(torch.ones(2, 4))
            dist.barrier()  # no rank runs a forward
            for parameter in kept:  # the shards, while FSDP2 has their copies
                parameter.mul_(2)
            job.publish()
            torch.testing.assert_close(model[2].bias.full_tensor(), 2 * plain()[2].bias)
    with training(size) as (job, model, optimizer):
        for parameter in model.parameters():  # unnoticed by version counters
            parameter.data.to_local().mul_(2)
        job.publish()
        full = model[2].weight.full_tensor()
        model[2].unshard() if hasattr(model[2], "unshard") else model.unshard()
        assert torch.equal(model[2].weight, full)
    with training(size) as (job, model, optimizer):
        model.double()
        with raises(
            libodc.PhaseError, "was torch.float32 (", "at attach and is torch.float64 (", ": remove() the job before"
        ):
            job.publish()
    model = plain()
    model[0].weight.requires_grad_(False)
    model = sharded(size, model)
    job = fsdp2.attach(model, torch.optim.SGD(model.parameters()), timeout=60)
    model[0].weight.requires_grad_(True)
    with raises(libodc.ArgumentError, "was frozen at attach and is trainable now"):
        backward(model)
    dist.barrier()
    job.remove()


def test_edits() -> None:
    run_torch_ranks(2, edits)
