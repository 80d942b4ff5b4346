# SPDX-License-Identifier: Apache-2.0
"""The emulated device: spans of the cost model's time, one after another, with communication beside them."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from emulation import Device


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


def device(clock: Clock, blocks: int = 2) -> Device:
    return Device(blocks, 0.5, clock.read, clock.pass_)


def block(device: Device, clock: Clock, before: float, compute: float, *, first: bool, backward: bool = False) -> None:
    """`before`: seconds that gathers, reductions and the rest take."""
    clock.pass_(before)
    device.begin(first=first)
    clock.pass_(compute)
    device.end(backward=backward)


def spans(device: Device) -> list[tuple[bool, float, float]]:
    return [(span.backward, span.begin - 100, span.end - 100) for span in device.spans]


def test_spans_take_the_time_of_the_cost_model() -> None:
    clock = Clock()
    one = device(clock)
    one.start_microbatch(12.0)  # 6 s: 1 s each block forward, 2 s backward
    block(one, clock, 0.25, 0.5, first=True)
    block(one, clock, 0, 0.5, first=False)
    block(one, clock, 0.25, 0.5, first=True, backward=True)
    block(one, clock, 0, 0.5, first=False, backward=True)
    assert spans(one) == [(False, 0.25, 1.25), (False, 1.25, 2.25), (True, 2.5, 4.5), (True, 4.5, 6.5)]
    assert clock.now == 106.5
    assert one.computed == 6.0
    assert all(span.excess == 0 for span in one.spans)


def test_what_fits_beside_the_span_before_takes_no_time() -> None:
    clock = Clock()
    one = device(clock, 3)
    one.start_microbatch(18.0)
    block(one, clock, 0, 0.1, first=True)
    block(one, clock, 0.75, 0.1, first=False)  # has fetched the third beside the second
    block(one, clock, 0, 0.1, first=False)
    assert spans(one) == [(False, 0, 1), (False, 1, 2), (False, 2, 3)]


def test_what_comes_too_late_delays_the_next_span() -> None:
    clock = Clock()
    one = device(clock, 3)
    one.start_microbatch(18.0)
    block(one, clock, 0, 0.0, first=True)
    block(one, clock, 2.5, 0.0, first=False)  # the third's parameters arrive at 3.5
    block(one, clock, 0, 0.0, first=False)
    assert spans(one) == [(False, 0, 1), (False, 1, 2), (False, 3.5, 4.5)]
    assert one.computed == 3.0 and all(span.excess == 0 for span in one.spans)


def test_compute_that_is_longer_makes_its_span_longer_and_is_known() -> None:
    clock = Clock()
    one = device(clock)
    one.start_microbatch(12.0)
    block(one, clock, 0, 1.5, first=True)
    block(one, clock, 0, 0.5, first=False)
    assert spans(one) == [(False, 0, 1.5), (False, 1.5, 2.5)]
    assert [span.excess for span in one.spans] == [0.5, 0]
    assert one.computed == 2.5


def test_evaluation_is_not_padded() -> None:
    clock = Clock()
    one = device(clock)
    one.start_microbatch(0)
    block(one, clock, 0, 0.5, first=True)
    assert clock.now == 100.5 and one.spans == [] and one.computed == 0
