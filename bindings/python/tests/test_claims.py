# SPDX-License-Identifier: Apache-2.0
"""Items that ranks claim, and ranks' speeds."""

import threading
import time
from multiprocessing import Queue
from typing import Any

import pytest
from ranks import run_ranks

import libodc


def claim_all(rank: int, size: int, job: str, claimed: Any) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        for minibatch, count in enumerate((100, 0, 37)):
            mine: list[int] = []

            def claim(count: int = count, mine: list[int] = mine) -> None:
                while (item := context.claim(count)) is not None:
                    mine.append(item)

            threads = [threading.Thread(target=claim) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(context.claims()) == sorted(mine) == sorted(context.claims(minibatch))
            claimed.put((minibatch, mine))
            context.sync()
            assert sorted(context.claims(minibatch)) == sorted(mine) and context.claims() == []
        with pytest.raises(libodc.ArgumentError, match="minibatch 0 are not kept"):
            context.claims(0)
        with pytest.raises(libodc.ArgumentError, match="count is -1"):
            context.claim(-1)


def test_each_item_is_claimed_once() -> None:
    claimed: Any = Queue()
    run_ranks(3, claim_all, claimed)
    items: dict[int, list[int]] = {}
    for _ in range(9):
        minibatch, mine = claimed.get(timeout=60)
        items.setdefault(minibatch, []).extend(mine)
    assert {minibatch: sorted(all_of) for minibatch, all_of in items.items()} == {
        0: list(range(100)),
        1: [],
        2: list(range(37)),
    }


def disagree(rank: int, size: int, job: str) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=60)
    with pytest.raises(libodc.MismatchError, match=r"claims from 1[12] items in minibatch 0, but .* from 1[12]:"):
        context.claim(11 + rank)
        context.sync()


def test_counts_that_differ_are_told() -> None:
    run_ranks(2, disagree)


def measure(rank: int, size: int, job: str) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        context.register("w", 10)
        assert context.speeds() == [1.0, 1.0]
        context.publish()
        time.sleep(0.01)
        context.report_cost(1e6 if rank == 1 else 1)
        context.sync()
        assert context.speeds()[1] > 1.9 and abs(sum(context.speeds()) - 2) < 1e-12
        with pytest.raises(libodc.ArgumentError, match="cost is -1"):
            context.report_cost(-1)


def test_speeds_come_from_reported_costs() -> None:
    run_ranks(2, measure)
