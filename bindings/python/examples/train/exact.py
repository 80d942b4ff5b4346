# SPDX-License-Identifier: Apache-2.0
"""Exact sums: the same training with each plan, on any number of ranks, also killed and resumed on another, ends with
the same bits. A sample is a microbatch of its own, since what a rank sums before it adds would depend on how samples
are packed."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from arms import Arm
from decoder import loss_sum
from experiment import ExperimentError
from figures import table
from progress import Progress
from rounding import Errors, measure
from samples import shuffled_passes
from schedule import WAIT_SECONDS
from session import Session
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from trainer import ClaimingTrainer, Trainer
from workload import Minibatch, Workload

import libodc
from libodc.torch import fsdp2

MOST_NORM = 1.0  # gradients are clipped to it
SAVED_EVERY = 2  # minibatches, if the training is to be killed

Checkpoint = dict[str, Any]


def _exact(checkpoint: Checkpoint | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> fsdp2.Job:
    state = None
    if checkpoint is not None:
        checkpoint = deepcopy(checkpoint)  # the optimizer goes on in its tensors
        options = StateDictOptions(full_state_dict=True)
        model_state, optimizer_state, state = checkpoint["model"], checkpoint["optimizer"], checkpoint["exact"]
        set_state_dict(
            model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state, options=options
        )
    return fsdp2.attach(model, optimizer, timeout=WAIT_SECONDS, sums="exact", exact_state=state)


class ExactTrainer(Trainer):
    def add_gradients(self, microbatches: Iterable[Sequence[int]]) -> tuple[libodc.ExactSum, int]:
        """This rank's losses, and the tokens that it learnt."""
        losses, learnt = libodc.ExactSum(), 0
        for sample in (sample for microbatch in microbatches for sample in microbatch):
            packed = self.prepare([sample])
            loss = loss_sum(self.model, packed.to(self._where))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.add(loss.detach())
            learnt += packed.learnt
        return losses, learnt

    def step(self, losses: libodc.ExactSum, learnt: int) -> float:
        """The minibatch's loss."""
        job = cast(fsdp2.Job, self._job)
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

    def save(self, path: Path, recipe: str, done: int) -> None:
        """Collective."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        exact = cast(fsdp2.Job, self._job).exact_state()
        if self._rank == 0:
            whole = {"recipe": recipe, "done": done, "model": model, "optimizer": optimizer, "exact": exact}
            torch.save(whole, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)


class ExactClaimingTrainer(ExactTrainer, ClaimingTrainer):
    pass


Arms = dict[Arm, type[ExactTrainer]]


def arms(checkpoint: Checkpoint | None) -> Arms:
    """All begin with the checkpoint."""
    attach = partial(_exact, checkpoint)
    return {
        Arm("odc + claims", "lb-mini", False, attach): ExactClaimingTrainer,
        Arm("odc + lb-mini", "lb-mini", False, attach): ExactTrainer,
        Arm("odc + lb-micro", "lb-micro", False, attach): ExactTrainer,
        Arm("odc + local-sort", "local-sort", False, attach): ExactTrainer,
    }


def run(session: Session) -> None:
    options, size = session.options, session.context.size
    checkpoint = _read(session) if options.resume else None
    done = checkpoint["done"] if checkpoint else 0
    trained = arms(checkpoint)
    if options.kill:
        trained = dict(islice(trained.items(), 1))
    workload = _workload(session, trained, done)
    steps = len(trained) * len(workload.minibatches)
    progress = Progress("step", steps, float(steps))
    results = {arm.name: _train(session, arm, kind, workload, progress) for arm, kind in trained.items()}
    errors = {} if checkpoint else _measure(session, workload)
    progress.clear()
    session.print_lines(
        table(["exact sums", "last loss", "parameters"], [[name, f"{a:.6f}", b] for name, (a, b) in results.items()])
    )
    if errors:
        rows = [[name, f"{one.rms:.2e}", f"{one.largest:.2e}"] for name, one in errors.items()]
        session.print_lines(["", *table(["error of sums", "rms", "largest"], rows)])
    session.write_summary(
        {
            "exact": {name: {"loss": one[0], "parameters": one[1]} for name, one in results.items()},
            "errors": {name: asdict(one) for name, one in errors.items()},
        }
    )
    resumed = f", resumed after {done}" if checkpoint else ""
    after = f"{options.minibatches} minibatches on {size} rank{'s' if size > 1 else ''}{resumed}, {options.reduce}"
    if len(set(results.values())) != 1:
        raise ExperimentError(f"the plans end with other parameters after {after}")
    verdict = f"verdict: the same bits with every plan after {after}; compare with another number of ranks"
    session.print_lines(["", verdict])


def _checkpoint_path(session: Session) -> Path:
    return session.options.report / "checkpoint"


def _read(session: Session) -> Checkpoint:
    path, recipe = _checkpoint_path(session), str(session.recipe)
    try:
        checkpoint: Checkpoint = torch.load(path)
    except FileNotFoundError:
        raise ExperimentError(f"--resume: there is no {path}; train with --kill and this --report first") from None
    if checkpoint["recipe"] != recipe:
        raise ExperimentError(f"--resume: {path} is of {checkpoint['recipe']}, and this training of {recipe}")
    if checkpoint["done"] >= session.options.minibatches:
        raise ExperimentError(
            f"--resume: {path} has {checkpoint['done']} minibatches, as many as --minibatches or more"
        )
    return checkpoint


def _workload(session: Session, trained: Arms, done: int) -> Workload:
    """The minibatches that are left."""
    options, workload = session.options, session.workload(trained)
    order = shuffled_passes(len(workload.samples), options.seed)
    for number in range(options.minibatches):
        chosen = list(islice(order, options.ranks * options.minibatch))
        if number >= done:
            plans = {arm.policy: workload.divide(chosen, session.context.size, arm.policy) for arm in trained}
            workload.minibatches.append(Minibatch(chosen, sum(workload.samples[i].length for i in chosen), plans))
    return workload


def _train(
    session: Session, arm: Arm, kind: type[ExactTrainer], workload: Workload, progress: Progress
) -> tuple[float, str]:
    trainer, loss = kind(arm, session.recipe, workload, session.mesh), 0.0
    kill, context = session.options.kill, session.context
    for number in range(len(workload.minibatches)):
        begin = time.monotonic()
        if kill and number > 0 and number % SAVED_EVERY == 0:
            trainer.save(_checkpoint_path(session), str(session.recipe), number)
        losses, learnt = trainer.add_gradients(trainer.microbatches(number))
        if number == kill and context.rank == context.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = trainer.step(losses, learnt)
        if context.rank == 0:
            result = f"loss {loss:.4f}  ({arm.name})"
            progress.step(1.0, time.monotonic() - begin, result, warm_up=number == 0)
    digest = trainer.digest()
    trainer.close()
    return loss, digest


def _measure(session: Session, workload: Workload) -> dict[str, Errors]:
    """On rank 0."""
    errors = measure(session.recipe, workload) if session.context.rank == 0 else {}
    session.context.sync()
    return errors
