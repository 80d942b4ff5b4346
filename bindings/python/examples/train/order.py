# SPDX-License-Identifier: Apache-2.0
"""What the order of samples does to training: the same samples of each window of minibatches in the order of the data,
with lookahead, and sorted by cost. One model for each order and seed, by one process: ranks only matter to the plan."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import torch
from decoder import Decoder, loss_sum, pack
from figures import table
from load import circumstances
from options import WINDOW, Options
from progress import Progress
from samples import Sample, shuffled_passes
from session import Session
from torch import distributed

import libodc

_PACKED = 16  # samples held out that are taken together


@dataclass(frozen=True)
class Order:
    """`minibatches` are planned together. `own_divisor`: gradients are divided by the minibatch's own tokens, not by
    the mean over those that are planned with it, as with MinibatchSampler.token_divisor."""

    name: str
    minibatches: int
    sorted: bool = False
    own_divisor: bool = False


@dataclass(frozen=True)
class Minibatch:
    samples: list[int]
    divisor: float


@dataclass
class Moves:
    """What an order changes, summed over what is planned together."""

    samples: int = 0
    moved: float = 0.0
    displacement: float = 0.0
    makespan: float = 0.0
    makespan_before: float = 0.0
    sorted_rows: float = 0.0
    """Makespan by collectives of the same minibatches, by their best plan."""

    def add(self, plan: libodc.WindowPlan, lengths: Sequence[int], options: Options) -> None:
        self.samples += len(lengths)
        self.moved += plan.moved * len(lengths)
        self.displacement += plan.displacement * len(lengths)
        self.makespan += plan.makespan
        self.makespan_before += plan.makespan_before
        for ranks in plan.minibatches:
            own = [lengths[i] for rank in ranks for microbatch in rank for i in microbatch]
            rows = libodc.plan(own, options.ranks, max_tokens=options.budget, policy="sorted-rows", cost="7b")
            self.sorted_rows += rows.collective_makespan


@dataclass
class Outcome:
    """`held_out[seed]`: the loss before training and after each window."""

    moves: Moves
    held_out: dict[int, list[float]]


@dataclass(frozen=True)
class Change:
    """Of the held-out loss at the end, relative to that in the order of the data: by seed, its mean and error."""

    by_seed: list[float]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return stdev(self.by_seed) / sqrt(len(self.by_seed))

    def __str__(self) -> str:
        return f"{self.mean:+.2%} ± {self.error:.2%}"


def orders(options: Options) -> list[Order]:
    ahead = options.lookahead
    return [
        Order("data", 1),
        Order(f"lookahead {ahead}", ahead),
        Order(f"lookahead {ahead}, own divisor", ahead, own_divisor=True),
        Order(f"sorted {WINDOW}", WINDOW, sorted=True),
    ]


def minibatches(
    order: Order, samples: Sequence[Sample], chosen: Sequence[int], options: Options, moves: Moves
) -> Iterator[Minibatch]:
    """Of a window."""
    count = order.minibatches
    size = count * options.ranks * options.minibatch
    for begin in range(0, len(chosen), size):
        group = chosen[begin : begin + size]
        lengths = [samples[i].length for i in group]
        plan = libodc.plan_window(
            lengths,
            options.ranks,
            count,
            max_tokens=options.budget,
            cost="7b",
            order="sorted" if order.sorted else "exchanged",
        )
        moves.add(plan, lengths, options)
        learnt = [int(samples[i].learnt.sum()) for i in group]
        # As MinibatchSampler does: training would notice if each window went from long samples to short ones.
        planned = random.Random(group[0]).sample(plan.minibatches, count) if order.sorted else plan.minibatches
        for ranks in planned:
            taken = [i for rank in ranks for microbatch in rank for i in microbatch]
            divisor = sum(learnt[i] for i in taken) if order.own_divisor else sum(learnt) / count
            yield Minibatch([group[i] for i in taken], divisor)


class OrderTrainer:
    """A model of its own for each order and seed; equal seeds begin with equal models. The rate of learning falls to
    zero, so that the last minibatches weigh no more than others."""

    def __init__(self, session: Session, seed: int) -> None:
        recipe, steps = session.recipe, session.options.windows * WINDOW
        torch.manual_seed(seed)
        self._samples, self._start = session.dataset.training, recipe.start
        held = session.dataset.held_out
        self._held_out = [pack(held[i : i + _PACKED], self._start) for i in range(0, len(held), _PACKED)]
        self._model = Decoder(recipe.vocabulary, recipe.width, recipe.blocks)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=recipe.rate)
        self._rate = torch.optim.lr_scheduler.LinearLR(self._optimizer, 1.0, 0.0, steps)

    def train(self, minibatch: Minibatch) -> float:
        """The loss, by the minibatch's divisor."""
        packed = pack([self._samples[i] for i in minibatch.samples], self._start)
        loss = loss_sum(self._model, packed) / minibatch.divisor
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._rate.step()
        return float(loss.detach())

    def evaluate(self) -> float:
        with torch.no_grad():
            losses = [float(loss_sum(self._model, packed)) for packed in self._held_out]
        return sum(losses) / sum(packed.learnt for packed in self._held_out)


def run(session: Session) -> None:
    """Seeds are divided over the ranks, as runs of their own."""
    options, rank, size = session.options, session.context.rank, session.context.size
    compared = orders(options)
    minibatch = options.ranks * options.minibatch
    session.print_lines(
        [
            f"order of samples: {options.seeds} seeds, {options.windows} windows of {WINDOW} minibatches of "
            f"{options.ranks} x {options.minibatch} samples; a window has the same samples in every order",
            *session.dataset.lines(options),
        ]
    )
    seeds = range(options.seed, options.seed + options.seeds)
    mine = seeds[rank::size]
    steps = len(mine) * len(compared) * options.windows
    progress = Progress("step", steps, float(steps))
    outcomes = {order: Outcome(Moves(), {}) for order in compared}
    for seed in mine:
        for order in compared:
            trainer = OrderTrainer(session, seed)
            losses = outcomes[order].held_out[seed] = [trainer.evaluate()]
            passes = shuffled_passes(len(session.dataset.training), seed)
            for _ in range(options.windows):
                begin = time.monotonic()
                chosen = list(islice(passes, WINDOW * minibatch))
                for one in minibatches(order, session.dataset.training, chosen, options, outcomes[order].moves):
                    loss = trainer.train(one)
                losses.append(trainer.evaluate())
                if rank == 0:
                    seconds = time.monotonic() - begin
                    progress.step(1.0, seconds, f"loss {loss:.4f}  (seed {seed}, {order.name})", warm_up=False)
    progress.clear()
    everyone: Any = [None] * size if rank == 0 else None
    distributed.gather_object(outcomes, everyone)
    if everyone is not None:
        for one in everyone[1:]:
            for order in compared:
                outcomes[order].held_out |= one[order].held_out
        _report(session, outcomes)


def change(outcomes: dict[Order, Outcome], order: Order) -> Change:
    reference = next(iter(outcomes.values())).held_out
    losses = outcomes[order].held_out
    return Change([losses[seed][-1] / reference[seed][-1] - 1 for seed in sorted(reference)])


def order_table(outcomes: dict[Order, Outcome]) -> list[str]:
    rows = []
    for number, (order, outcome) in enumerate(outcomes.items()):
        moves = outcome.moves
        rows.append(
            (
                order.name,
                f"{moves.moved / moves.samples:.1%}",
                f"{moves.displacement / moves.samples:.2f}",
                f"{moves.makespan_before / moves.makespan:.2f}x",
                f"{moves.sorted_rows / moves.makespan:.2f}x",
                f"{fmean(losses[-1] for losses in outcome.held_out.values()):.4f}",
                str(change(outcomes, order)) if number else "-",
            )
        )
    return table(("order", "moved", "displaced", "plan's gain", "over sorted-rows", "held-out loss", "change"), rows)


def sentence(order: Order, found: Change) -> str:
    within = "within" if abs(found.mean) <= found.error else "beyond"
    return f"verdict: {order.name} changes the held-out loss by {found}: {within} its standard error"


def _report(session: Session, outcomes: dict[Order, Outcome]) -> None:
    compared = list(outcomes)[1]
    result = sentence(compared, change(outcomes, compared))
    lines = [
        result,
        "",
        *order_table(outcomes),
        "",
        "change: at the end, paired by seed, mean and its standard error; plan's gain: makespan, free communication;",
        "over sorted-rows: the same over the best plan for collectives of the same minibatches",
    ]
    print("", *lines, sep="\n")
    session.write_summary(
        {
            "experiment": "order of samples",
            "verdict": result,
            **circumstances(None, 0),
            "orders": [
                {
                    "name": order.name,
                    **asdict(outcome.moves),
                    "held_out_losses": {str(seed): losses for seed, losses in sorted(outcome.held_out.items())},
                    "change_by_seed": change(outcomes, order).by_seed,
                }
                for order, outcome in outcomes.items()
            ],
        }
    )
    from pictures import Pictures  # imports Matplotlib, on one rank only

    title = f"Order of samples, {session.options.ranks} ranks x {session.options.minibatch} samples"
    pictures = Pictures(session.options.report, title, result)
    pictures.orders(
        {order.name: [losses for _, losses in sorted(one.held_out.items())] for order, one in outcomes.items()},
        {order.name: change(outcomes, order).by_seed for order in list(outcomes)[1:]},
    )
    pictures.write_page(lines)
