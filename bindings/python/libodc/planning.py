# SPDX-License-Identifier: Apache-2.0
"""Balancing a minibatch, or several together, over ranks and microbatches."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from ._abi import Policy, WindowOrder, lib, odc_plan_request, odc_plan_summary, odc_window_request, odc_window_summary
from ._arguments import INT32, UINT64, c_enum, c_integer, c_string
from .errors import ArgumentError, check


@dataclass(frozen=True)
class Plan:
    """`ranks[r]` holds the microbatches of rank r in the order to run them, each a list of sample indices."""

    ranks: list[list[list[int]]]
    makespan: float
    """The cost of the costliest rank."""
    lower_bound: float
    """A lower bound of the makespan for these samples and ranks."""
    collective_makespan: float
    """If ranks wait for each other after each microbatch, as collectives do."""
    items: list[list[int]]
    """What is left to be claimed, as Context.claim(len(items)) hands it out: microbatches, the costliest first."""


def plan_cost(model: str) -> tuple[float, float]:
    """The coefficients (a, b) of "linear", "1.5b" or "7b": s tokens cost a*x*x + b*x, x = s / 32000."""
    a, b = ctypes.c_double(), ctypes.c_double()
    check(lib.odc_plan_cost(c_string("the model", model), ctypes.byref(a), ctypes.byref(b)))
    return a.value, b.value


def plan(
    lengths: Iterable[int],
    ranks: int,
    *,
    max_tokens: int = 65536,
    policy: Policy | str = Policy.LB_MINI,
    cost: str | tuple[float, float] = "linear",
    speeds: Sequence[float] | None = None,
    tail: float = 0.0,
) -> Plan:
    """Divides samples of these lengths (tokens) over ranks. Deterministic.

    `policy`: a Policy, or "local-sort", "lb-micro", "lb-mini" or "sorted-rows". `cost`: a model's name or
    (a, b), see plan_cost. LB-Mini only: `speeds` of the ranks, relative, as Context.speeds has them; `tail`, the share
    of the cost, 0 to 1, that is left to be claimed: the cheapest samples.
    """
    request = _request(lengths, ranks, max_tokens, policy, cost)
    if speeds is not None:
        if len(speeds) != request.ranks:
            raise ArgumentError(f"there are {len(speeds)} speeds for {request.ranks} ranks; give one for each")
        request.speeds = (ctypes.c_double * len(speeds))(*speeds)
    request.tail = tail
    rank_of = (ctypes.c_int32 * request.count)()
    microbatch_of = (ctypes.c_int32 * request.count)()
    summary = odc_plan_summary()
    check(lib.odc_plan(ctypes.byref(request), rank_of, microbatch_of, ctypes.byref(summary)))
    planned, left = [[i for i in range(request.count) if (rank_of[i] < 0) is free] for free in (False, True)]
    made = _divided(planned, request.ranks, rank_of, microbatch_of)
    items = _divided(left, 1, [0] * request.count, microbatch_of)[0]
    return Plan(made, summary.makespan, summary.lower_bound, summary.collective_makespan, items)


@dataclass(frozen=True)
class WindowPlan:
    """`minibatches[m][r]` holds the microbatches of rank r in minibatch m in the order to run them, each a list of
    indices into the lengths of the whole window."""

    minibatches: list[list[list[list[int]]]]
    makespan: float
    """The sum over the minibatches of the costliest rank's cost."""
    makespan_before: float
    """The same in the order of the data."""
    collective_makespan: float
    """The sum if ranks wait for each other after each microbatch, as collectives do."""
    collective_makespan_before: float
    lower_bound: float
    """No order of these samples on these ranks takes less."""
    moved: float
    """The share of the samples that changed their minibatch."""
    displacement: float
    """By how many minibatches a sample moves, mean over all."""
    token_variation: float
    """Of a minibatch's tokens: standard deviation / mean."""
    token_variation_before: float
    tokens: float
    """Of a minibatch, mean over the window: the divisor of gradients of a loss that is a sum over tokens."""


def plan_window(
    lengths: Iterable[int],
    ranks: int,
    minibatches: int | Sequence[int],
    *,
    max_tokens: int = 65536,
    policy: Policy | str = Policy.LB_MINI,
    cost: str | tuple[float, float] = "linear",
    order: WindowOrder | str = WindowOrder.EXCHANGED,
    most_moved: float = 0.2,
    most_displacement: float = 0.5,
) -> WindowPlan:
    """Plans several minibatches together. Deterministic; never slower than plan() on each by itself.

    With few samples a rank the longest sample decides a minibatch's time. A few samples change their minibatch, so that
    several long ones meet in one and the others are short; the window's samples stay the same, and each minibatch's
    number of samples.

    `lengths`: of all samples of the window, in the order of the data. `minibatches`: how many, of equally many samples;
    or the number of samples of each. `order`: a WindowOrder, "exchanged", or "sorted": all samples by cost, which
    changes training. `most_moved`, `most_displacement`: the limits of WindowPlan.moved and .displacement, above 0, for
    "exchanged".
    """
    request = _request(lengths, ranks, max_tokens, policy, cost)
    if isinstance(order, str):
        order = _named("order", order, WindowOrder)
    counts = None if isinstance(minibatches, int) else list(minibatches)
    for name, limit in (("most_moved", most_moved), ("most_displacement", most_displacement)):
        if not limit > 0:
            raise ValueError(f"{name} is {limit}, must be above 0; without exchanges, plan each minibatch by itself")
    window = odc_window_request(
        samples=ctypes.pointer(request),
        most_moved=most_moved,
        most_displacement=most_displacement,
        minibatches=c_integer("minibatches", minibatches if counts is None else len(counts), INT32),
        order=c_enum("order", order, WindowOrder),
    )
    if counts is not None:
        checked = [c_integer(f"the count of minibatch {index}", count, UINT64) for index, count in enumerate(counts)]
        window.counts = (ctypes.c_uint64 * len(checked))(*checked)
    minibatch_of, rank_of, microbatch_of = ((ctypes.c_int32 * request.count)() for _ in range(3))
    summary = odc_window_summary()
    check(lib.odc_plan_window(ctypes.byref(window), minibatch_of, rank_of, microbatch_of, ctypes.byref(summary)))
    samples: list[list[int]] = [[] for _ in range(window.minibatches)]
    for sample in range(request.count):
        samples[minibatch_of[sample]].append(sample)
    made = [_divided(one, request.ranks, rank_of, microbatch_of) for one in samples]
    return WindowPlan(made, *(getattr(summary, field.name) for field in fields(WindowPlan)[1:]))


_Enum = TypeVar("_Enum", Policy, WindowOrder)


def _named(what: str, name: str, kind: type[_Enum]) -> _Enum:
    names = {one.name.lower().replace("_", "-"): one for one in kind}
    if name not in names:
        raise ValueError(f'{what} "{name}" is none of {", ".join(names)}')
    return names[name]


def _request(
    lengths: Iterable[int], ranks: int, max_tokens: int, policy: Policy | str, cost: str | tuple[float, float]
) -> odc_plan_request:
    if isinstance(policy, str):
        policy = _named("policy", policy, Policy)
    tokens = [c_integer(f"the length of sample {index}", length, UINT64) for index, length in enumerate(lengths)]
    a, b = plan_cost(cost) if isinstance(cost, str) else cost
    return odc_plan_request(
        lengths=(ctypes.c_uint64 * len(tokens))(*tokens),
        count=len(tokens),
        max_tokens=c_integer("max_tokens", max_tokens, UINT64),
        a=a,
        b=b,
        ranks=c_integer("ranks", ranks, INT32),
        policy=c_enum("policy", policy, Policy),
    )


def _divided(
    samples: Iterable[int], ranks: int, rank_of: Sequence[int], microbatch_of: Sequence[int]
) -> list[list[list[int]]]:
    """These samples by rank and microbatch."""
    made: list[list[list[int]]] = [[] for _ in range(ranks)]
    for sample in sorted(samples, key=lambda i: microbatch_of[i]):
        mine = made[rank_of[sample]]
        if microbatch_of[sample] == len(mine):
            mine.append([])
        mine[microbatch_of[sample]].append(sample)
    return made
