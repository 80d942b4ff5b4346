# SPDX-License-Identifier: Apache-2.0
"""plan_window against plan, and the sampler's lookahead."""

import random
from typing import Any

import pytest

import libodc

BUDGET = 65536


def long_tailed(count: int) -> list[int]:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    return [1 + int(65535 / (1 + draw.randrange(60))) for _ in range(count)]


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [sample for microbatches in ranks for microbatch in microbatches for sample in microbatch]


# ---- plan_window ----


@pytest.mark.parametrize("policy", ["lb-mini", "sorted-rows"])
@pytest.mark.parametrize("minibatches", [1, 3, [24, 24, 8]])
def test_each_minibatch_is_planned_by_itself(policy: str, minibatches: Any) -> None:
    counts = [24] * minibatches if isinstance(minibatches, int) else minibatches
    lengths = long_tailed(sum(counts))
    made = libodc.plan_window(lengths, 8, minibatches, cost="7b", policy=policy)
    assert [len(flat(ranks)) for ranks in made.minibatches] == counts
    assert sorted(sample for ranks in made.minibatches for sample in flat(ranks)) == list(range(sum(counts)))
    makespans = []
    for ranks in made.minibatches:
        samples = sorted(flat(ranks))
        alone = libodc.plan([lengths[i] for i in samples], 8, cost="7b", policy=policy)
        assert ranks == [[[samples[i] for i in microbatch] for microbatch in rank] for rank in alone.ranks]
        makespans.append(alone.makespan)
    assert made.makespan == pytest.approx(sum(makespans))
    assert made.moved <= 0.2 and made.displacement <= 0.5 and made.lower_bound <= made.makespan * (1 + 1e-12)
    assert made.tokens == pytest.approx(sum(lengths) / len(counts))


def test_long_samples_meet() -> None:
    lengths = [1000, 60000, 1000, 1000, 1000, 60000, 1000, 1000]
    assert libodc.plan_window(lengths, 2, 2).moved == 0  # an exchange moves two samples of eight
    for options in ({"most_moved": 0.25}, {"order": "sorted"}, {"order": libodc.WindowOrder.SORTED}):
        made = libodc.plan_window(lengths, 2, 2, **options)
        assert any({1, 5} <= set(flat(ranks)) for ranks in made.minibatches)
        assert made.makespan < 0.6 * made.makespan_before


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="none of exchanged, sorted"):
        libodc.plan_window([1], 1, 1, order="best")
    with pytest.raises(ValueError, match="most_moved is 0, must be above 0"):
        libodc.plan_window([1], 1, 1, most_moved=0)
    with pytest.raises(ValueError, match="the count of minibatch 1 is -1"):
        libodc.plan_window([1], 1, [1, -1])
    with pytest.raises(libodc.ArgumentError, match="a window has 1 to 16"):
        libodc.plan_window([1] * 17, 1, 17)
    with pytest.raises(libodc.ArgumentError, match="not equally many"):
        libodc.plan_window([1] * 5, 1, 2)


# ---- the sampler ----

torch = pytest.importorskip("torch", reason="torch is not installed")
from libodc.torch import MinibatchSampler  # noqa: E402

COUNT, SIZE, AHEAD = 150, 16, 4  # ten minibatches, the last of 6 samples: two windows of four and one of two
LIMITS: dict[str, Any] = {"lookahead": AHEAD, "most_moved": 1.0, "most_displacement": 4.0, "cost": "7b", "seed": 3}


def samplers(ranks: int, lengths: list[int], **options: Any) -> list[MinibatchSampler]:
    given = {"lengths": lengths, "minibatch_size": SIZE, "max_tokens": BUDGET, **LIMITS, **options}
    return [MinibatchSampler(rank=rank, num_replicas=ranks, **given) for rank in range(ranks)]


def run(made: list[MinibatchSampler]) -> list[list[list[list[int]]]]:
    """The minibatches to come: of each, each rank's microbatches."""
    return [list(minibatch) for minibatch in zip(*made, strict=True)]


def order_of(epoch: int) -> list[int]:
    order: list[int] = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
    return order


def test_windows_are_planned_together() -> None:
    lengths = long_tailed(COUNT)
    made = samplers(8, lengths)
    assert len(made[0]) == 10
    for epoch in (0, 1):
        for one in made:
            one.set_epoch(epoch)
        minibatches = run(made)
        for first, counts in ((0, [SIZE] * 4), (4, [SIZE] * 4), (8, [SIZE, 6])):
            samples = order_of(epoch)[first * SIZE : first * SIZE + sum(counts)]
            limits = {name: LIMITS[name] for name in ("most_moved", "most_displacement", "cost")}
            expected = libodc.plan_window([lengths[i] for i in samples], 8, counts, **limits)
            for number, ranks in enumerate(expected.minibatches, first):
                assert minibatches[number] == [[[samples[i] for i in m] for m in rank] for rank in ranks]
        alone = run(samplers(8, lengths, lookahead=1, seed=3 + epoch))
        assert [len(flat(ranks)) for ranks in minibatches] == [len(flat(ranks)) for ranks in alone]


@pytest.mark.parametrize("delivered", range(11))
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_resumed_run_has_the_same_samples(delivered: int, ranks: int) -> None:
    lengths = long_tailed(COUNT)
    whole, part = samplers(8, lengths), samplers(8, lengths)
    for one in whole + part:
        one.set_epoch(2)
    expected = run(whole)
    iterators = [iter(one) for one in part]
    assert [[next(one) for one in iterators] for _ in range(delivered)] == expected[:delivered]
    state = part[0].state_dict()
    assert state == part[5].state_dict()
    resumed = samplers(ranks, lengths)
    for one in resumed:
        one.load_state_dict(state)
        assert one.state_dict() == state
        one.set_epoch(2)
    rest = run(resumed)
    if ranks == 8:
        assert rest == expected[delivered:]
    begun = -(-delivered // AHEAD) * AHEAD  # windows from here on are planned for the new number of ranks
    assert [set(flat(one)) for one in rest[: begun - delivered]] == [
        set(flat(one)) for one in expected[delivered:begun]
    ]
    assert sorted(sample for one in expected[:delivered] + rest for sample in flat(one)) == list(range(COUNT))
    again = [set(flat(one)) for one in run(resumed)]
    assert again == [set(flat(one)) for one in run(samplers_of_epoch(ranks, lengths, 2))]


def samplers_of_epoch(ranks: int, lengths: list[int], epoch: int) -> list[MinibatchSampler]:
    made = samplers(ranks, lengths)
    for one in made:
        one.set_epoch(epoch)
    return made


def test_a_state_in_a_window_goes_on_from_state_to_state() -> None:
    lengths = long_tailed(COUNT)
    (one,) = samplers(1, lengths)
    expected = run([one])
    taken, state = [], one.state_dict()
    state["delivered"], state["window"] = 0, []
    for ranks in (1, 2, 3, 1, 4, 2, 3, 1, 2, 1):
        made = samplers(ranks, lengths)
        for each in made:
            each.load_state_dict(state)
        taken.append(set(flat([next(iter(each)) for each in made])))
        state = made[-1].state_dict()
    assert sorted(sample for samples in taken for sample in samples) == list(range(COUNT))
    assert taken[:4] == [set(flat(minibatch)) for minibatch in expected[:4]]


def test_the_divisor_is_the_windows() -> None:
    lengths = long_tailed(COUNT)
    for ahead in (1, AHEAD):
        (one,) = samplers(1, lengths, lookahead=ahead)
        with pytest.raises(ValueError, match="no minibatch has been delivered"):
            one.token_divisor  # noqa: B018
        total = 0.0
        for number, _ in enumerate(one):
            first = number - number % ahead
            window = order_of(0)[first * SIZE : (first + ahead) * SIZE]
            share = (SIZE if number < 9 else 6) / len(window)
            assert one.token_divisor == pytest.approx(sum(lengths[i] for i in window) * share)
            total += one.token_divisor
        assert total == pytest.approx(sum(lengths))


def test_the_divisor_counts_what_the_loss_counts() -> None:
    lengths = long_tailed(COUNT)
    learnt = [length // 3 for length in lengths]
    for given in (learnt, torch.tensor(learnt)):
        (one,) = samplers(1, lengths, loss_tokens=given)
        for number, _ in enumerate(one):
            first = number - number % AHEAD
            window = order_of(0)[first * SIZE : (first + AHEAD) * SIZE]
            share = (SIZE if number < 9 else 6) / len(window)
            assert one.token_divisor == pytest.approx(sum(learnt[i] for i in window) * share)
    (one,) = samplers(1, lengths, loss_tokens=[0] * COUNT)
    next(iter(one))
    with pytest.raises(ValueError, match="the loss counts no tokens of minibatch 0 and its window"):
        one.token_divisor  # noqa: B018


def test_windows_may_be_sorted() -> None:
    lengths = long_tailed(COUNT)
    for order in ("sorted", libodc.WindowOrder.SORTED):
        made = run(samplers(3, lengths, window_order=order))
        for first in range(0, len(made), AHEAD):
            window = [sorted(lengths[i] for i in flat(one)) for one in made[first : first + AHEAD]]
            joined = [length for one in sorted(window) for length in one]
            here = {frozenset(flat(one)) for one in made[first : first + AHEAD]}
            given = {frozenset(order_of(0)[n * SIZE : (n + 1) * SIZE]) for n in range(first, first + len(here))}
            # Short minibatches may take no less time sorted: then they stay as they are.
            assert joined == sorted(joined) or here == given
            assert frozenset().union(*here) == frozenset().union(*given)


def test_bad_values_are_refused() -> None:
    for wrong, words in (
        ({"window_order": "best"}, "none of exchanged, sorted"),
        ({"loss_tokens": [1] * (COUNT - 1)}, f"loss_tokens has {COUNT - 1} numbers, lengths {COUNT}"),
        ({"loss_tokens": [1] * (COUNT - 1) + [2]}, f"cannot count 2 tokens of sample {COUNT - 1}, which has 1"),
        ({"loss_tokens": [0.5] * COUNT}, "loss_tokens has elements of torch.float32"),
        ({"lookahead": 0}, "lookahead is 0, must be at least 1"),
        ({"lookahead": 17}, "a window has 1 to 16"),
        ({"most_moved": 2.0}, "`most_moved` is 2"),
    ):
        with pytest.raises((ValueError, libodc.ArgumentError), match=words):
            samplers(1, [1] * COUNT, **wrong)
    state = samplers(1, [1] * COUNT)[0].state_dict()
    with pytest.raises(ValueError, match="was taken with lookahead=4, this sampler has lookahead=2"):
        samplers(1, [1] * COUNT, lookahead=2)[0].load_state_dict(state)
