# SPDX-License-Identifier: Apache-2.0
"""Balancing a minibatch over ranks and microbatches."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

from ._abi import Policy, lib, odc_plan_request, odc_plan_summary
from ._arguments import INT32, UINT64, c_enum, c_integer, c_string
from .errors import check


@dataclass(frozen=True)
class Plan:
    """`ranks[r]` holds the microbatches of rank r in the order to run them, each a list of sample indices."""

    ranks: list[list[list[int]]]
    makespan: float
    """The cost of the costliest rank."""
    lower_bound: float
    """A lower bound of the makespan for these samples and ranks."""


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
) -> Plan:
    """Divides samples of these lengths (tokens) over ranks. Deterministic.

    `policy`: a Policy, or "local-sort", "lb-micro" or "lb-mini". `cost`: a model's name or (a, b), see plan_cost.
    """
    if isinstance(policy, str):
        names = {p.name.lower().replace("_", "-"): p for p in Policy}
        if policy not in names:
            raise ValueError(f'policy "{policy}" is none of {", ".join(names)}')
        policy = names[policy]
    tokens = [c_integer(f"the length of sample {index}", length, UINT64) for index, length in enumerate(lengths)]
    a, b = plan_cost(cost) if isinstance(cost, str) else cost
    count = len(tokens)
    request = odc_plan_request(
        lengths=(ctypes.c_uint64 * count)(*tokens),
        count=count,
        max_tokens=c_integer("max_tokens", max_tokens, UINT64),
        a=a,
        b=b,
        ranks=c_integer("ranks", ranks, INT32),
        policy=c_enum("policy", policy, Policy),
    )
    rank_of = (ctypes.c_int32 * count)()
    microbatch_of = (ctypes.c_int32 * count)()
    summary = odc_plan_summary()
    check(lib.odc_plan(ctypes.byref(request), rank_of, microbatch_of, ctypes.byref(summary)))
    made: list[list[list[int]]] = [[] for _ in range(ranks)]
    for sample in sorted(range(count), key=lambda i: microbatch_of[i]):
        mine = made[rank_of[sample]]
        if microbatch_of[sample] == len(mine):
            mine.append([])
        mine[microbatch_of[sample]].append(sample)
    return Plan(made, summary.makespan, summary.lower_bound)
