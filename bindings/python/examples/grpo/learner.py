# SPDX-License-Identifier: Apache-2.0
"""GRPO over ODC: a rollout, log-probabilities, the exchange of answers, and several minibatches of updates. A rank
waits for the others only for the sizes of a rollout's answers, in each minibatch's sync, and where the reference
becomes the policy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pstdev

import policy
import sorting
import torch
from decoder import Decoder
from devices import cost_of, device_of, planning, speed_of
from emulation import pad
from generate import answers
from schedule import WAIT_SECONDS
from settings import Settings
from stopwatch import Span
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

import libodc
from libodc.torch import MinibatchSampler, Pool, fsdp2
from libodc.torch.seeds import microbatch_seed

Sample = dict[str, torch.Tensor]
FIELDS = {"tokens": torch.int64, "old": torch.float32, "reference": torch.float32, "advantage": torch.float32}
"""Of an answer with its prompt; `old` and `reference`: log-probabilities of the answer's tokens."""
PHASES = ("rollout", "log-probabilities", "exchange", "update")
HELD_OUT = -1
"""The number of the rollout that is only evaluated."""
_UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Group:
    """The answers to one prompt; `number` is the prompt's in the rollout."""

    number: int
    prompt: list[int]
    answers: list[list[int]]
    rewards: list[float]


@dataclass
class Record:
    """One rollout on one rank. `marks`: the beginnings of the PHASES and the end of the last, by time.monotonic;
    `spans`: name, begin and end of what computes; `waits`: of the exchange and the syncs. `waited`: seconds, in
    publishes and syncs of the policy; `parameters_waited`: as the rollout began, `answers_waited`: from its end on, for
    what other ranks have answered; `reference_waited`: for the reference, in all rollouts so far. `steps`: of each
    group of the rollout, one for each token of its longest answer. `padding`: passes over nothing, so that collectives
    match. `computed`: by minibatch, the seconds of each pass on an emulated device, whose speed is in `speeds`,
    and `compute_spans`, of which they are the sums. `most_off`: by how much the ratio of new to old probabilities
    differed from 1 before the first step."""

    reward: float = 0.0
    groups: int = 0
    kept: int = 0
    trained: int = 0
    padding: int = 0
    most_off: float = 0.0
    divergence: float = 0.0
    busy: float = 0.0
    waited: float = 0.0
    parameters_waited: float = 0.0
    answers_waited: float = 0.0
    reference_waited: float = 0.0
    steps: list[int] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    computed: list[list[float]] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    compute_spans: list[Span] = field(default_factory=list)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.waits.append((begin, time.monotonic()))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.spans.append((name, begin, time.monotonic()))

    def mark(self) -> None:
        self.marks.append(time.monotonic())

    @property
    def seconds(self) -> list[float]:
        """Of the phases."""
        return [end - begin for begin, end in pairwise(self.marks)]


class Totals:
    """What rides on a minibatch's sync, added exactly."""

    def __init__(self) -> None:
        self.sums = {
            name: libodc.ExactSum() for name in ("reward", "answers", "groups", "kept", "divergence", "tokens")
        }
        self.most_off = 0.0


class Learner:
    """One arm's policy and reference on this rank. All ranks make the same calls. With `plan` LB-Mini each rank gets as
    many answers as balances the tokens, with LB-Micro as many as the others."""

    plan = "lb-mini"
    in_step = False  # no rank waits for another between passes

    def __init__(self, settings: Settings, context: libodc.Context, mesh: DeviceMesh, base: Decoder) -> None:
        self.settings, self.context, self.rank, self.size = settings, context, context.rank, context.size
        self.policy, self.reference = (policy.made(settings, mesh, base) for _ in range(2))
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=settings.rate)
        self.device = device_of(settings)
        if settings.emulate > 0:
            pad(self.policy.blocks, self.device)
        self._attach()

    def _attach(self) -> None:
        self.job = fsdp2.attach(self.policy, self.optimizer, timeout=WAIT_SECONDS, sums="exact")
        self.reading = fsdp2.attach(self.reference, timeout=WAIT_SECONDS)

    def close(self) -> None:
        self.job.close()
        self.reading.close()

    def run(self, number: int) -> Record:
        """Rollout `number` and what is learnt from it."""
        record, busy, waited = Record(), time.process_time(), self.waited()
        record.mark()
        groups = self.rollout(number, record)
        record.parameters_waited = self.waited() - waited
        record.mark()
        samples = self.score(groups, record)
        record.groups, record.kept = len(groups), len(samples) // self.settings.answers
        record.mark()
        with record.waiting():
            sampler, data = self.exchange(number, samples)
        record.answers_waited = self.waited() - waited - record.parameters_waited
        record.mark()
        self.update(number, sampler, data, groups, record)
        if (number + 1) % self.settings.refresh == 0:
            self.refresh()
        record.mark()
        record.busy = time.process_time() - busy
        record.reference_waited = self.waited_for_reference()
        return record

    def waited(self) -> float:
        """Seconds so far, for the policy's parameters and for other ranks."""
        return waited_of(self.job.context)

    def waited_for_reference(self) -> float:
        return waited_of(self.reading.context)

    # ---- rollout ----

    def rollout(self, number: int, record: Record) -> list[Group]:
        """This rank's groups."""
        prompts = sorting.prompts_of(self.settings.seed, number, self.settings.prompts)
        made = []
        with self.whole(), torch.no_grad():
            for index in self.prompts_of_rank(prompts):
                with record.span("rollout"):
                    made.append(self.group(number, index, prompts[index]))
                record.steps.append(max(map(len, made[-1].answers)))
        return made

    def whole(self) -> AbstractContextManager[None]:
        """Gathers the policy's parameters once."""
        return self.job.unsharded()

    def evaluate(self) -> float:
        """Collective. The mean reward of answers to prompts that no rollout has."""
        prompts = sorting.prompts_of(self.settings.seed, HELD_OUT, self.settings.held_out)
        total = libodc.ExactSum()
        with self.whole(), torch.no_grad():
            for index in range(self.rank, len(prompts), self.size):
                for reward in self.group(HELD_OUT, index, prompts[index]).rewards:
                    total.add(reward)
        digits = torch.tensor(total.digits, dtype=torch.float64)
        distributed.all_reduce(digits)
        return libodc.ExactSum.of_digits(digits.tolist()) / (len(prompts) * self.settings.answers)

    def group(self, number: int, index: int, prompt: list[int]) -> Group:
        seed = microbatch_seed(self.settings.seed, number, [index])
        drawn = answers(self.policy, prompt, self.settings.answers, seed)
        return Group(index, prompt, drawn, [sorting.reward(prompt, one) for one in drawn])

    def prompts_of_rank(self, prompts: Sequence[Sequence[int]]) -> Iterable[int]:
        made = libodc.plan([len(prompt) for prompt in prompts], self.size, max_tokens=_UNBOUNDED, policy=self.plan)
        return [index for microbatch in made.ranks[self.rank] for index in microbatch]

    # ---- log-probabilities ----

    def score(self, groups: Sequence[Group], record: Record) -> dict[int, Sample]:
        """The answers of groups with signal, by number. Needs gathers only."""
        kept = [group for group in groups if len(set(group.rewards)) > 1]
        made = {}
        padding = self.padding_of(len(kept) * self.settings.answers)
        with torch.no_grad(), record.span("log-probabilities"):
            for group in kept:
                mean, deviation = fmean(group.rewards), pstdev(group.rewards)
                for index, (answer, reward) in enumerate(zip(group.answers, group.rewards, strict=True)):
                    packed = policy.packed_answers([(group.prompt, answer)])
                    made[group.number * self.settings.answers + index] = {
                        "tokens": torch.tensor([*group.prompt, sorting.SORT, *answer]),
                        "old": policy.log_probabilities(self.policy, packed),
                        "reference": policy.log_probabilities(self.reference, packed),
                        "advantage": torch.tensor([(reward - mean) / deviation]),
                    }
            self.pad_scores(padding, record)
        return made

    def padding_of(self, passes: int) -> int:
        """Passes over nothing that collectives need beside so many."""
        return 0

    def pad_scores(self, padding: int, record: Record) -> None:
        """Runs them for log-probabilities."""

    # ---- exchange ----

    def exchange(self, number: int, samples: dict[int, Sample]) -> tuple[MinibatchSampler | None, dict[int, Sample]]:
        """The minibatches of the rollout, and this rank's answers in them; no sampler if no group has signal."""
        pool = Pool(self.job, samples, FIELDS)
        if len(pool) == 0:
            return None, {}
        sampler = self.sampler(number, pool.sizes["tokens"], pool.sizes["old"])
        return sampler, pool.fetch(self.wanted(sampler))

    def sampler(self, number: int, lengths: torch.Tensor, loss_tokens: torch.Tensor) -> MinibatchSampler:
        scale, cost = planning(self.settings)
        size = self.settings.minibatch * self.settings.answers
        return MinibatchSampler(
            lengths=lengths * scale,
            loss_tokens=loss_tokens,
            minibatch_size=size,
            max_tokens=self.budget(lengths * scale),
            rank=self.rank,
            num_replicas=self.size,
            policy=self.plan,
            cost=cost,
            seed=self.settings.seed + number,
            lookahead=self.lookahead(-(-len(lengths) // size)),
        )

    def lookahead(self, minibatches: int) -> int:
        """How many of a rollout's minibatches are planned together."""
        return 1

    def budget(self, lengths: torch.Tensor) -> int:
        """Tokens of a microbatch at most; `lengths`: of the rollout's answers."""
        return _UNBOUNDED

    def wanted(self, sampler: MinibatchSampler) -> list[list[int]]:
        return sampler.samples_by_rank()

    # ---- update ----

    def update(
        self,
        rollout: int,
        sampler: MinibatchSampler | None,
        data: dict[int, Sample],
        groups: Sequence[Group],
        record: Record,
    ) -> None:
        totals = self.totals_of(groups)
        for number, minibatch in enumerate([[]] if sampler is None else self.minibatches(sampler)):
            if number > 0:
                totals = Totals()
            count, speed = 0, speed_of(self.settings, rollout, number, self.rank)
            record.computed.append([])
            record.speeds.append(speed)
            for numbers in self.passes(minibatch):
                together = [data[index] for index in numbers]
                with self.computing(together, speed, record):
                    self.loss(together, totals).backward()  # type: ignore[no-untyped-call]
                count += len(together)
            record.trained += count
            self.end_minibatch(1.0 if sampler is None else sampler.token_divisor, count, totals, record)
            if number == 0:
                record.most_off = totals.most_off

    @contextmanager
    def computing(self, samples: Sequence[Sample], speed: float, record: Record) -> Iterator[None]:
        """The update by one pass, on the emulated device if there is one."""
        device, begin = self.device, time.monotonic()
        begun, computed = len(device.spans), device.computed
        device.start_microbatch(sum(cost_of(len(sample["tokens"])) for sample in samples) / speed)
        yield
        device.start_microbatch(0)
        record.computed[-1].append(device.computed - computed)
        record.compute_spans += device.spans[begun:]
        spans = [(span.begin, span.end) for span in device.spans[begun:]] or [(begin, time.monotonic())]
        record.spans += [("update", *span) for span in spans]

    def minibatches(self, sampler: MinibatchSampler) -> Iterable[Iterable[list[int]]]:
        return sampler

    def passes(self, minibatch: Iterable[list[int]]) -> Iterable[list[int]]:
        """The answers of each forward and backward."""
        return (one for microbatch in minibatch for one in self.split(microbatch))

    def split(self, microbatch: list[int]) -> list[list[int]]:
        """An answer is a pass of its own, so that bits do not depend on the plan."""
        return [[index] for index in microbatch]

    def totals_of(self, groups: Sequence[Group]) -> Totals:
        totals = Totals()
        for group in groups:
            for reward in group.rewards:
                totals.sums["reward"].add(reward)
            totals.sums["answers"].add(len(group.rewards))
            totals.sums["groups"].add(1)
            totals.sums["kept"].add(len(set(group.rewards)) > 1)
        return totals

    def loss(self, samples: Sequence[Sample], totals: Totals) -> torch.Tensor:
        """Summed over the tokens of the pass's answers: all ranks' tokens divide it after the minibatch."""
        settings = self.settings
        old, reference = (torch.cat([sample[name] for sample in samples]) for name in ("old", "reference"))
        advantage = torch.cat([sample["advantage"].expand(len(sample["old"])) for sample in samples])
        new = policy.log_probabilities(self.policy, policy.packed_answers(map(_answered, samples)))
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = torch.minimum(ratio * advantage, clipped * advantage)
        apart = reference - new
        divergence = apart.exp() - apart - 1
        totals.sums["divergence"].add(divergence.detach().sum())
        totals.sums["tokens"].add(len(old))
        totals.most_off = max(totals.most_off, float((ratio.detach() - 1).abs().max()))
        return (settings.kl * divergence - gain).sum()

    def end_minibatch(self, divisor: float, count: int, totals: Totals, record: Record) -> None:
        with record.waiting():
            report = self.job.sync_gradients(divisor=divisor, sums=totals.sums, maxima={"off": totals.most_off})
        self.step(report.sums, record)
        totals.most_off = report.maxima["off"]
        record.waited += report.waited_s

    def step(self, sums: dict[str, float], record: Record) -> None:
        if sums["answers"] > 0:
            record.reward = sums["reward"] / sums["answers"]
        if sums["tokens"] > 0:
            record.divergence = sums["divergence"] / sums["tokens"]
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clip(self) -> None:
        self.job.clip_grad_norm_(policy.MOST_NORM)

    def refresh(self) -> None:
        """The reference becomes the policy."""
        self.reading.refresh_from(self.job)


def _answered(sample: Sample) -> tuple[list[int], list[int]]:
    """The prompt and the answer."""
    tokens: list[int] = sample["tokens"].tolist()
    at = tokens.index(sorting.SORT)
    return tokens[:at], tokens[at + 1 :]


def waited_of(context: libodc.Context) -> float:
    """Seconds so far, in publishes and syncs."""
    stats = context.stats()
    return (stats.publish_wait_ns + stats.sync_wait_ns) * 1e-9
