# SPDX-License-Identifier: Apache-2.0
import random

import pytest

import libodc


@pytest.mark.parametrize("policy", ["local-sort", "lb-micro", "lb-mini", "sorted-rows"])
def test_a_plan_holds_every_sample_once_within_the_budget(policy: str) -> None:
    lengths = [random.Random(7).randrange(1, 5000) for _ in range(64)]
    made = libodc.plan(lengths, 4, max_tokens=8192, policy=policy, cost="7b")
    assert sorted(i for rank in made.ranks for micro in rank for i in micro) == list(range(64))
    assert all(0 < sum(lengths[i] for i in micro) <= 8192 for rank in made.ranks for micro in rank)
    a, b = libodc.plan_cost("7b")
    costs = [
        sum(a * (lengths[i] / 32000) ** 2 + b * lengths[i] / 32000 for m in rank for i in m) for rank in made.ranks
    ]
    assert max(costs) == pytest.approx(made.makespan)
    assert made.lower_bound <= made.makespan * (1 + 1e-12) and made.makespan <= made.collective_makespan * (1 + 1e-12)
    assert made == libodc.plan(lengths, 4, max_tokens=8192, policy=policy, cost=(a, b))


def test_speeds_and_a_tail() -> None:
    lengths = [random.Random(7).randrange(1, 5000) for _ in range(64)]
    made = libodc.plan(lengths, 3, max_tokens=8192, speeds=[1, 1, 0.5])
    assert made.items == []
    tokens = [sum(lengths[i] for micro in rank for i in micro) for rank in made.ranks]
    assert tokens[2] < 0.6 * tokens[0] and made.makespan == pytest.approx(made.lower_bound, rel=0.03)
    made = libodc.plan(lengths, 3, max_tokens=8192, speeds=[1, 1, 0.5], tail=0.3)
    items = [i for item in made.items for i in item]
    assert sorted(items + [i for rank in made.ranks for micro in rank for i in micro]) == list(range(64))
    assert 0.25 * sum(lengths) < sum(lengths[i] for i in items) <= 0.3 * sum(lengths)
    costs = [sum(lengths[i] for i in item) for item in made.items]
    assert costs == sorted(costs, reverse=True)
    assert libodc.plan(lengths, 3, speeds=[2, 2, 2]) == libodc.plan(lengths, 3)
    with pytest.raises(libodc.ArgumentError, match="2 speeds for 3 ranks"):
        libodc.plan(lengths, 3, speeds=[1, 1])
    with pytest.raises(libodc.ArgumentError, match="speed of rank 1 is 0"):
        libodc.plan(lengths, 2, speeds=[1, 0])
    with pytest.raises(libodc.ArgumentError, match="`tail` is 2"):
        libodc.plan(lengths, 2, tail=2)
    with pytest.raises(libodc.ArgumentError, match="only LB-Mini"):
        libodc.plan(lengths, 2, tail=0.5, policy="lb-micro")


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="none of local-sort, lb-micro, lb-mini, sorted-rows"):
        libodc.plan([1], 1, policy="best")
    with pytest.raises(ValueError, match="the length of sample 1 is -3, must be an integer"):
        libodc.plan([1, -3], 1)
    with pytest.raises(libodc.ArgumentError, match="sample 0 has 0 tokens"):
        libodc.plan([0], 1)
    with pytest.raises(libodc.ArgumentError, match="sample 0 has 70000 tokens"):
        libodc.plan([70000], 1)
    with pytest.raises(libodc.ArgumentError, match="no samples"):
        libodc.plan([], 1)
    with pytest.raises(libodc.ArgumentError, match="70b"):
        libodc.plan_cost("70b")
