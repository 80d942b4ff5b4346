# SPDX-License-Identifier: Apache-2.0
"""Exact sums: the same training with three plans, on any number of ranks, ends with the same bits. A sample is a
microbatch of its own, since what a rank sums before it adds would depend on how samples are packed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import cast

import torch
from arms import Arm
from decoder import loss_sum
from experiment import ExperimentError
from figures import table
from progress import Progress
from samples import shuffled_passes
from schedule import WAIT_SECONDS
from session import Session
from torch import nn
from torch.distributed.tensor import DTensor
from trainer import ClaimingTrainer, Trainer
from workload import Minibatch, Workload

import libodc
from libodc.torch import fsdp2

MOST_NORM = 1.0  # gradients are clipped to it


def _exact(model: nn.Module, optimizer: torch.optim.Optimizer) -> fsdp2.Job:
    return fsdp2.attach(model, optimizer, timeout=WAIT_SECONDS, sums="exact")


class ExactTrainer(Trainer):
    def train_exactly(self, microbatches: Iterable[Sequence[int]]) -> float:
        """The minibatch's loss."""
        job, losses, learnt = cast(fsdp2.Job, self._job), libodc.ExactSum(), 0
        for sample in (sample for microbatch in microbatches for sample in microbatch):
            packed = self.prepare([sample])
            loss = loss_sum(self.model, packed.to(self._where))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.add(loss.detach())
            learnt += packed.learnt
        report = job.sync_gradients(weight=learnt, sums={"loss": losses, "tokens": learnt})
        job.clip_grad_norm_(MOST_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return report.sums["loss"] / report.sums["tokens"]

    def digest(self) -> str:
        """Of all parameters. Collective."""
        text = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            whole = cast(DTensor, parameter.detach()).full_tensor().contiguous()
            text.update(name.encode() + whole.view(torch.uint8).numpy().tobytes())
        return text.hexdigest()[:16]


class ExactClaimingTrainer(ExactTrainer, ClaimingTrainer):
    pass


ARMS = {
    Arm("odc + lb-micro", "lb-micro", False, _exact): ExactTrainer,
    Arm("odc + lb-mini", "lb-mini", False, _exact): ExactTrainer,
    Arm("odc + claims", "lb-mini", False, _exact): ExactClaimingTrainer,
}


def run(session: Session) -> None:
    options = session.options
    workload = session.workload(ARMS)
    order = shuffled_passes(len(workload.samples), options.seed)
    for _ in range(options.minibatches):
        chosen = list(islice(order, options.ranks * options.minibatch))
        plans = {arm.policy: workload.divide(chosen, session.context.size, arm.policy) for arm in ARMS}
        workload.minibatches.append(Minibatch(chosen, sum(workload.samples[i].length for i in chosen), plans))
    progress = Progress(len(ARMS) * options.minibatches, float(len(ARMS) * options.minibatches))
    results = {arm.name: _train(session, arm, kind, workload, progress) for arm, kind in ARMS.items()}
    rows = [[name, f"{loss:.6f}", digest] for name, (loss, digest) in results.items()]
    progress.clear()
    session.say(table(["exact sums", "last loss", "parameters"], rows))
    same = len(set(results.values())) == 1
    size = session.context.size
    after = f"{options.minibatches} minibatches on {size} rank{'s' if size > 1 else ''}"
    session.write_summary({"exact": {name: {"loss": one[0], "parameters": one[1]} for name, one in results.items()}})
    if not same:
        raise ExperimentError(f"the plans end with other parameters after {after}")
    session.say(["", f"verdict: the same bits with every plan after {after}; compare with another number of ranks"])


def _train(
    session: Session, arm: Arm, kind: type[ExactTrainer], workload: Workload, progress: Progress
) -> tuple[float, str]:
    trainer, loss = kind(arm, session.recipe, workload, session.mesh), 0.0
    for number in range(session.options.minibatches):
        begin = time.monotonic()
        loss = trainer.train_exactly(trainer.microbatches(number))
        if session.context.rank == 0:
            progress.step(1.0, time.monotonic() - begin, loss, f"  ({arm.name})", warm_up=number == 0)
    digest = trainer.digest()
    trainer.close()
    return loss, digest
