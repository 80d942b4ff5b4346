# SPDX-License-Identifier: Apache-2.0
"""The samples of this rank: minibatches of the whole job, each balanced over the ranks by libodc.plan."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed
from torch.utils.data import Sampler, default_collate

from .._abi import Policy, WindowOrder
from ..context import Context
from ..errors import ArgumentError
from ..planning import Plan, WindowPlan, plan, plan_cost, plan_window
from .loader import Costed, Microbatch, MinibatchLoader, Source
from .seeds import microbatch_seed

_T = TypeVar("_T")


@dataclass
class _Position:
    """The position of an iteration. Each has its own, so that an abandoned one no longer counts."""

    epoch: int
    delivered: int
    window: dict[int, list[int]] = field(default_factory=dict)
    """The samples of minibatches to come in a window that a loaded state had begun; its ranks and cost may differ."""
    plans: dict[int, list[list[Microbatch]]] = field(default_factory=dict)
    """Each rank's microbatches of minibatches that samples_by_rank() has planned, until they are asked for."""


def _counted(position: _Position, minibatches: Iterable[Any]) -> Iterator[Any]:
    for minibatch in minibatches:
        position.delivered += 1
        yield minibatch


def _samples_in(samples: list[int], made: WindowPlan, number: int) -> list[int]:
    """Of a minibatch of a window, in the order of the data."""
    return [samples[i] for i in sorted(i for rank in made.minibatches[number] for one in rank for i in one)]


def _planned_then_claimed(context: Context, made: Plan, rank: int, samples: list[int]) -> Iterator[Microbatch]:
    for planned in made.ranks[rank]:
        yield [samples[i] for i in planned]
    while (item := context.claim(len(made.items))) is not None:
        yield [samples[i] for i in made.items[item]]


def _whole(name: str, value: int, least: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, must be an integer") from None
    if whole < least:
        raise ValueError(f"{name} is {whole}, must be at least {least}")
    return whole


def _real(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, must be a number") from None


def _integers(name: str, values: Any) -> torch.Tensor:
    """A copy of tokens of each sample as int64."""
    try:
        given = values.detach() if isinstance(values, torch.Tensor) else torch.tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a sequence of integers, the tokens of each sample: {error}") from error
    if given.ndim != 1:
        raise ValueError(f"{name} has the shape {tuple(given.shape)}; it must be 1-D, one number for each sample")
    if given.numel() == 0:
        raise ValueError(f"{name} is empty; give the tokens of each sample of the dataset")
    if given.dtype is torch.bool or given.is_floating_point() or given.is_complex():
        raise ValueError(f"{name} has elements of {given.dtype}; they must be integers, tokens of each sample")
    return given.to("cpu", torch.int64, copy=True)


def _loss_tokens(given: Any, lengths: torch.Tensor) -> torch.Tensor:
    tokens = _integers("loss_tokens", given)
    if len(tokens) != len(lengths):
        raise ValueError(f"loss_tokens has {len(tokens)} numbers, lengths {len(lengths)}; give one for each sample")
    wrong = torch.nonzero((tokens < 0) | (tokens > lengths))
    if len(wrong) > 0:
        index = int(wrong[0])
        raise ValueError(
            f"the loss cannot count {tokens[index]} tokens of sample {index}, which has {lengths[index]} (loss_tokens)"
        )
    return tokens


def _tokens(lengths: Any, max_tokens: int) -> torch.Tensor:
    """A copy of the lengths, each in 1..max_tokens."""
    tokens = _integers("lengths", lengths)
    wrong = torch.nonzero((tokens < 1) | (tokens > max_tokens))
    if len(wrong) == 0:
        return tokens
    index = int(wrong[0])
    if tokens[index] < 1:
        raise ValueError(f"sample {index} has {tokens[index]} tokens; each needs at least one: leave it out")
    raise ValueError(
        f"sample {index} has {tokens[index]} tokens, more than max_tokens={max_tokens}; cut it, leave it out, or "
        "raise max_tokens"
    )


class MinibatchSampler(Sampler[list[Microbatch]]):
    """For each minibatch of the job, this rank's microbatches: a list, perhaps empty, of lists of dataset indices.

    The samples of a minibatch depend on the dataset's size, `minibatch_size`, `shuffle`, `seed` and the epoch only;
    libodc.plan divides them over the ranks. With `lookahead` they also depend on the lengths and the ranks:
    libodc.plan_window exchanges a few samples between neighbouring minibatches. So every rank must be given the same
    arguments but for `rank`, and a state can be loaded in a job of another size.
    """

    def __init__(
        self,
        *,
        lengths: Any,
        minibatch_size: int,
        max_tokens: int,
        rank: int | None = None,
        num_replicas: int | None = None,
        policy: Policy | str = Policy.LB_MINI,
        cost: str | tuple[float, float] = "linear",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        lookahead: int = 1,
        window_order: WindowOrder | str = WindowOrder.EXCHANGED,
        most_moved: float = 0.2,
        most_displacement: float = 0.5,
        tail: float = 0.25,
        loss_tokens: Any = None,
    ) -> None:
        """`lengths`: tokens of each sample of the dataset, a sequence, NumPy array or tensor. `minibatch_size`: samples
        over all ranks; the last minibatch of an epoch has what is left, or is left out with `drop_last`. `max_tokens`:
        the budget of a microbatch. `rank`, `num_replicas`: this rank and the number of ranks; from torch.distributed
        where it is initialised, else 0 of 1. `policy`, `cost`: as in libodc.plan. `lookahead`: so many minibatches are
        planned together, 1 to 16, in the `window_order` and within the limits `most_moved` and `most_displacement` of
        libodc.plan_window; 1: each by itself. It has a price in the held-out loss, a high one in the order "sorted"
        (whose minibatches are shuffled within a window), which the package's README tells. `tail`: with claims(), the
        share of the cost that is left to be claimed.
        `loss_tokens`: how many tokens of each sample the loss counts, for token_divisor; None: all. Wrong values are
        ValueErrors."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if num_replicas is None:
            num_replicas = torch.distributed.get_world_size() if distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if distributed else 0
        self.num_replicas = _whole("num_replicas", num_replicas, 1)
        self.rank = _whole("rank", rank, 0)
        if self.rank >= self.num_replicas:
            raise ValueError(f"rank is {rank}, must be in 0..{num_replicas - 1}: num_replicas is {num_replicas}")
        self.minibatch_size = _whole("minibatch_size", minibatch_size, 1)
        self.max_tokens = _whole("max_tokens", max_tokens, 1)
        self.seed = _whole("seed", seed, 0)
        self.policy = policy
        self.cost = cost
        self.shuffle = shuffle
        self.drop_last = bool(drop_last)
        self.lookahead = _whole("lookahead", lookahead, 1)
        self.tail = _real("tail", tail)
        if not 0 <= self.tail <= 1:
            raise ValueError(f"tail is {tail}, must be a share of the cost, from 0 to 1")
        self._limits: dict[str, Any] = {
            "order": window_order,
            "most_moved": _real("most_moved", most_moved),
            "most_displacement": _real("most_displacement", most_displacement),
        }
        self._tokens = _tokens(lengths, self.max_tokens)
        self._loss_tokens = self._tokens if loss_tokens is None else _loss_tokens(loss_tokens, self._tokens)
        self.taken: list[list[Microbatch]] = []
        """What claims() has given this rank since it began, by minibatch."""
        self._position = _Position(0, 0)
        self._begin_at = 0  # the minibatch at which the next iteration begins
        self._told: _Position | None = None  # that iteration's, once samples_by_rank() has said what it gives
        self._planned: tuple[Any, list[int], WindowPlan] | None = None  # the last window
        self._ordered: tuple[tuple[int, int], torch.Tensor] | None = None  # the last epoch's samples
        # A wrong policy or cost, or a minibatch that is too small, raises now, not at the end of an epoch.
        smallest = 0 if drop_last else self.samples % self.minibatch_size
        ones = [1] * (smallest or self.minibatch_size)
        plan(ones, self.num_replicas, **self._planning)
        plan_window([1] * self.lookahead, 1, self.lookahead, **self._limits)

    @property
    def samples(self) -> int:
        """Samples of the dataset."""
        return len(self._tokens)

    @property
    def epoch(self) -> int:
        return self._position.epoch

    def __len__(self) -> int:
        """Minibatches of an epoch."""
        full, left = divmod(self.samples, self.minibatch_size)
        return full if self.drop_last or left == 0 else full + 1

    def __iter__(self) -> Iterator[list[Microbatch]]:
        """From the beginning of the epoch; after load_state_dict, once, from where the state was taken."""
        return _counted(self._begin(), self._minibatches())

    def samples_by_rank(self) -> list[list[int]]:
        """By rank, the samples of its minibatches of the epoch, from where the next iteration begins: what it needs of
        data that the ranks have made themselves (Pool.fetch). The same on all ranks. It is not what claims() gives:
        there any rank may get any sample, so each needs all of them."""
        if self._told is None:
            position, order = self._next(), self._order(self.epoch)
            numbers = range(position.delivered, len(self))
            position.plans = {number: self._by_rank(position, number, order) for number in numbers}
            self._told = position
        plans, ranks = self._told.plans.values(), range(self.num_replicas)
        return [[i for made in plans for microbatch in made[rank] for i in microbatch] for rank in ranks]

    def claims(self, job: Any, repeat: Sequence[Sequence[Microbatch]] | None = None) -> Iterator[Iterator[Microbatch]]:
        """Like iterating, but minibatches are planned by the ranks' measured speeds, and each is an iterator: first
        this rank's planned microbatches, the costliest first, then those that it claims, until the job has none left.

            for microbatches in sampler.claims(job):
                for microbatch in microbatches:  # to its end
                    ...
                job.sync_gradients(...)

        `job`: of libodc.torch.fsdp2.attach, or a Context. All ranks must iterate this way over one job. The costs of
        what the loop has taken are reported, so that speeds are measured. `repeat`: `taken` of this rank in an earlier
        run over as many ranks from the same position on; each minibatch then has those microbatches, and nothing is
        planned or claimed. LB-Mini only."""
        return self._claims_as(job, repeat, lambda minibatch: minibatch)

    def _claims_as(
        self,
        job: Any,
        repeat: Sequence[Sequence[Microbatch]] | None,
        load: Callable[[Iterator[Costed]], Iterator[tuple[_T, float]]],
    ) -> Iterator[Iterator[_T]]:
        context = self._context_of(job)
        return (self._reported(context, load(one)) for one in self._claims(context, repeat))

    def _context_of(self, job: Any) -> Context:
        context: Context = job if isinstance(job, Context) else job.context
        if (context.rank, context.size) != (self.rank, self.num_replicas):
            raise ValueError(
                f"the sampler is for rank {self.rank} of {self.num_replicas}, but this is rank {context.rank} of "
                f"{context.size} of the job"
            )
        plan([1], 1, **self._planning, speeds=[1.0], tail=self.tail)  # raises for another policy than LB-Mini
        if self._told is not None:
            raise ValueError(
                f"samples_by_rank() was asked for epoch {self.epoch}: it tells what each rank gets by iterating, and "
                "with claims() any rank may get any sample; let each have all, Pool.fetch([range(len(pool))] * ranks)"
            )
        return context

    def _claims(self, context: Context, repeat: Sequence[Sequence[Microbatch]] | None) -> Iterator[Iterator[Costed]]:
        """Begins a minibatch when it is asked for the next, which must be after the sync."""
        position = self._begin()
        order = self._order(position.epoch)
        numbers = range(position.delivered, len(self))
        if repeat is not None and len(repeat) < len(numbers):
            raise ValueError(f"repeat has {len(repeat)} minibatches; {len(numbers)} are left of epoch {position.epoch}")
        self.taken = []
        for number in numbers:
            if repeat is not None:
                microbatches = iter(repeat[number - numbers.start])
            else:
                samples = self._samples_of(position, number, order)
                made = self._planned_by_speed(position, number, samples, context.speeds())
                microbatches = _planned_then_claimed(context, made, self.rank, samples)
            position.delivered += 1
            self.taken.append([])
            yield self._costed(microbatches, self.taken[-1])

    def _costed(self, microbatches: Iterator[Microbatch], taken: list[Microbatch]) -> Iterator[Costed]:
        a, b = plan_cost(self.cost) if isinstance(self.cost, str) else self.cost
        for microbatch in microbatches:
            taken.append(list(microbatch))
            lengths = [int(self._tokens[sample]) / 32000 for sample in microbatch]
            yield microbatch, sum(a * x * x + b * x for x in lengths)

    @staticmethod
    def _reported(context: Context, microbatches: Iterable[tuple[_T, float]]) -> Iterator[_T]:
        total = 0.0
        for microbatch, cost in microbatches:
            yield microbatch
            total += cost
            context.report_cost(total)

    def _planned_by_speed(self, position: _Position, number: int, samples: list[int], speeds: list[float]) -> Plan:
        lengths = self._tokens[samples].tolist()
        try:
            return plan(lengths, self.num_replicas, **self._planning, speeds=speeds, tail=self.tail)
        except ArgumentError as error:
            raise ValueError(f"minibatch {number} of epoch {position.epoch} cannot be planned: {error}") from error

    def _samples_of(self, position: _Position, number: int, order: torch.Tensor) -> list[int]:
        """Of a minibatch, after exchanges within its window."""
        if self.lookahead == 1 or number in position.window:
            return position.window.get(number) or self._samples(order, number)
        first = number - number % self.lookahead
        return _samples_in(*self._window(position.epoch, first, order), number - first)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. The epoch of a loaded state keeps its position."""
        if epoch != self._position.epoch:
            self._position = _Position(_whole("epoch", epoch, 0), 0)
            self._begin_at = 0
            self._told = None

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict needs, in plain integers, booleans and strings. The minibatch that the loop is at counts
        as delivered. A DataLoader made without `loader` takes minibatches ahead of the loop; they count, too."""
        return {
            "epoch": self._position.epoch,
            "delivered": self._position.delivered,
            "seed": self.seed,
            "minibatch_size": self.minibatch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "samples": self.samples,
            "lengths": self._digest,
            "lookahead": self.lookahead,
            "window": self._rest_of_window(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration gives the rest of the state's epoch. The seed is the state's; `rank`, `num_replicas`,
        `max_tokens`, `policy`, `cost` and the order and limits of windows may differ from those it was taken with: the
        minibatches of a window that was begun keep their samples. ValueError: another dataset, minibatch_size, shuffle,
        drop_last or lookahead."""
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise ValueError(f"this is no state of a MinibatchSampler; it lacks {', '.join(missing)}")
        for name, mine in (
            ("samples", self.samples),
            ("lengths", self._digest),
            ("minibatch_size", self.minibatch_size),
            ("shuffle", self.shuffle),
            ("drop_last", self.drop_last),
            ("lookahead", self.lookahead),
        ):
            if state[name] != mine:
                what = "lengths" if name == "lengths" else f"{name}={state[name]}"
                here = "others" if name == "lengths" else f"{name}={mine}"
                raise ValueError(
                    f"the state was taken with {what}, this sampler has {here}: what is left of the epoch cannot be "
                    "told; make the sampler as it was, or begin an epoch without the state"
                )
        seed, epoch = _whole("the state's seed", state["seed"], 0), _whole("the state's epoch", state["epoch"], 0)
        delivered = _whole("the state's delivered", state["delivered"], 0)
        window = self._checked_window(seed, epoch, delivered, state["window"])
        self.seed = seed
        self._position = _Position(epoch, delivered, window)
        self._begin_at = delivered
        self._told = None

    def _checked_window(self, seed: int, epoch: int, delivered: int, given: Any) -> dict[int, list[int]]:
        if delivered > len(self):
            raise ValueError(f"the state has {delivered} minibatches delivered, an epoch has {len(self)}")
        numbers = self._left_in_window(delivered)
        counts = [min(self.minibatch_size, self.samples - number * self.minibatch_size) for number in numbers]
        try:
            window = [[operator.index(sample) for sample in samples] for samples in given]
        except TypeError:
            raise ValueError(f"the state's window is {given!r}, must be lists of indices of samples") from None
        samples = [sample for one in window for sample in one]
        if [len(one) for one in window] != counts or len(set(samples)) < len(samples):
            raise ValueError(
                f"the state's window has minibatches of {[len(one) for one in window]} samples; after {delivered} that "
                f"were delivered it has {counts} (the last as `drop_last` has it), all of them different"
            )
        if outside := sorted(set(samples) - self._samples_in_window(seed, epoch, numbers)):
            raise ValueError(
                f"the state's window has sample {outside[0]}, which is not in that window of epoch {epoch}"
            )
        return dict(zip(numbers, window, strict=True))

    def loader(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None, **dataloader_options: Any
    ) -> MinibatchLoader:
        """The samples themselves: see MinibatchLoader. `collate_fn`: makes a microbatch of a list of samples; None:
        torch's default_collate. `dataloader_options`: of torch.utils.data.DataLoader (num_workers, prefetch_factor,
        pin_memory, …)."""
        source = Source(self.samples, self.__len__, self._begin_with, self._minibatches, self._claims_as)
        return MinibatchLoader(source, dataset, collate_fn or default_collate, dataloader_options)

    def _next(self) -> _Position:
        """Where the next iteration begins."""
        window = self._position.window if self._begin_at == self._position.delivered else {}
        return _Position(self.epoch, self._begin_at, window)

    def _begin(self) -> _Position:
        self._position = self._told or self._next()
        self._begin_at = 0
        self._told = None
        return self._position

    def _begin_with(self, minibatches: Iterable[Any]) -> Iterator[Any]:
        """Begins an iteration with what they give."""
        position = self._begin()
        return _counted(position, iter(minibatches))

    def _minibatches(self) -> Iterator[list[Microbatch]]:
        """This rank's minibatches from the position on."""
        position, order = self._position, self._order(self._position.epoch)
        return (self._microbatches(position, number, order) for number in range(position.delivered, len(self)))

    def _order(self, epoch: int, seed: int | None = None) -> torch.Tensor:
        """`seed`: None: the sampler's."""
        if not self.shuffle:
            return torch.arange(self.samples, device="cpu")
        wanted = (self.seed if seed is None else seed, epoch)
        if self._ordered is None or self._ordered[0] != wanted:
            generator = torch.Generator().manual_seed(sum(wanted))
            self._ordered = (wanted, torch.randperm(self.samples, generator=generator, device="cpu"))
        return self._ordered[1]

    @property
    def _planning(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "policy": self.policy, "cost": self.cost}

    def _microbatches(self, position: _Position, number: int, order: torch.Tensor) -> list[Microbatch]:
        return self._by_rank(position, number, order)[self.rank]

    def _by_rank(self, position: _Position, number: int, order: torch.Tensor) -> list[list[Microbatch]]:
        """Each rank's microbatches of a minibatch."""
        if number in position.plans:
            return position.plans.pop(number)
        try:
            if self.lookahead == 1 or number in position.window:
                return self._by_rank_of_one(self._samples_of(position, number, order))
            return self._by_rank_in_window(position.epoch, number, order)
        except ArgumentError as error:
            raise ValueError(f"minibatch {number} of epoch {position.epoch} cannot be planned: {error}") from error

    def _samples(self, order: torch.Tensor, number: int) -> list[int]:
        """Of a minibatch, in the order of the data."""
        samples: list[int] = order[number * self.minibatch_size : (number + 1) * self.minibatch_size].tolist()
        return samples

    def _by_rank_of_one(self, samples: list[int]) -> list[list[Microbatch]]:
        made = plan(self._tokens[samples].tolist(), self.num_replicas, **self._planning)
        return [[[samples[i] for i in microbatch] for microbatch in rank] for rank in made.ranks]

    def _by_rank_in_window(self, epoch: int, number: int, order: torch.Tensor) -> list[list[Microbatch]]:
        first = number - number % self.lookahead
        samples, made = self._window(epoch, first, order)
        return [[[samples[i] for i in microbatch] for microbatch in rank] for rank in made.minibatches[number - first]]

    def _window(self, epoch: int, first: int, order: torch.Tensor) -> tuple[list[int], WindowPlan]:
        """The samples of the window that begins with a minibatch, in the order of the data, and its plan."""
        wanted = (epoch, first, self.seed)
        if self._planned is None or self._planned[0] != wanted:
            groups = [self._samples(order, number) for number in self._numbers(first)]
            samples = [sample for group in groups for sample in group]
            lengths = self._tokens[samples].tolist()
            counts = [len(group) for group in groups]
            made = plan_window(lengths, self.num_replicas, counts, **self._planning, **self._limits)
            if self._limits["order"] in ("sorted", WindowOrder.SORTED):
                made = self._shuffled(made, counts, wanted)
            self._planned = (wanted, samples, made)
        return self._planned[1:]

    @staticmethod
    def _shuffled(made: WindowPlan, counts: list[int], seeds: tuple[int, ...]) -> WindowPlan:
        """The minibatches of as many samples in another order: training would notice if each window went from long
        samples to short ones."""
        full = [number for number, count in enumerate(counts) if count == counts[0]]
        digest = hashlib.sha256(repr(seeds).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
        minibatches = list(made.minibatches)
        for number, source in enumerate(torch.randperm(len(full), generator=generator, device="cpu").tolist()):
            minibatches[full[number]] = made.minibatches[full[source]]
        return replace(made, minibatches=minibatches)

    def _numbers(self, first: int) -> range:
        """The minibatches of the window that begins with one."""
        return range(first, min(first + self.lookahead, len(self)))

    def _left_in_window(self, delivered: int) -> range:
        """The minibatches to come in a window that has begun; none between windows."""
        begun = delivered % self.lookahead
        return range(delivered, self._numbers(delivered - begun).stop if begun else delivered)

    def _samples_in_window(self, seed: int, epoch: int, left: range) -> set[int]:
        """Of all its minibatches, of which `left` are to come."""
        numbers = self._numbers(left.start - left.start % self.lookahead)
        order = self._order(epoch, seed)[numbers.start * self.minibatch_size : numbers.stop * self.minibatch_size]
        return set(order.tolist())

    def _rest_of_window(self) -> list[list[int]]:
        """The samples of the minibatches to come in a window that has begun."""
        epoch, delivered = self._position.epoch, self._position.delivered
        left = self._left_in_window(delivered)
        if not left:
            return []
        if delivered in self._position.window:
            return [samples for number, samples in sorted(self._position.window.items()) if number >= delivered]
        first = delivered - delivered % self.lookahead
        samples, made = self._window(epoch, first, self._order(epoch))
        return [_samples_in(samples, made, number - first) for number in left]

    @property
    def token_divisor(self) -> float:
        """Divides the gradients of the minibatch that the loop is at, for a loss that is a sum over tokens: the tokens
        that the loss counts in a minibatch, in the mean over its window. The minibatch's own number would give the
        tokens of a minibatch of short samples more weight, as `weight=tokens` does, too.
        `job.sync_gradients(divisor=sampler.token_divisor)`. With a DataLoader made without `loader`, which takes
        minibatches ahead, it is a later one's. ValueError: before the first."""
        if self._position.delivered == 0:
            raise ValueError("no minibatch has been delivered yet: ask for token_divisor within the loop over them")
        number, order = self._position.delivered - 1, self._order(self._position.epoch)
        groups = [self._samples(order, one) for one in self._numbers(number - number % self.lookahead)]
        tokens = sum(int(self._loss_tokens[group].sum()) for group in groups)
        if tokens == 0:
            raise ValueError(f"the loss counts no tokens of minibatch {number} and its window; nothing can divide it")
        return tokens * len(groups[number % self.lookahead]) / sum(len(group) for group in groups)

    def seed_of(self, microbatch: Microbatch) -> int:
        """The seed of a microbatch of this epoch, for libodc.torch.seeded: it depends on the sampler's seed, the epoch
        and the samples, not on the rank that computes them."""
        return microbatch_seed(self.seed, self.epoch, microbatch)

    @functools.cached_property
    def _digest(self) -> str:
        seen = (ctypes.c_ubyte * self._tokens.nbytes).from_address(self._tokens.data_ptr())
        return hashlib.sha256(seen).hexdigest()
