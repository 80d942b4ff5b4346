# SPDX-License-Identifier: Apache-2.0
"""What ctypes or C would take for something else is refused in words."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import odc
from odc import Context

UINT64 = f"must be an integer in 0..{2**64 - 1}"
INT32 = f"must be an integer in 0..{2**31 - 1}"


CALLS: list[tuple[Callable[[Context], Any], str]] = [
    (lambda c: c.register("x", 2**64 + 8), f'numel of shard "x" is {2**64 + 8}, {UINT64}'),
    (lambda c: c.register("x", -1), f'numel of shard "x" is -1, {UINT64}'),
    (lambda c: c.register("x", 8.0), f'numel of shard "x" is 8.0, {UINT64}'),
    (lambda c: c.register("x", "8"), f"numel of shard \"x\" is '8', {UINT64}"),
    (lambda c: c.register("x", 8, slices=[2**64 + 8]), f'slices of shard "x"[0] is {2**64 + 8}, {UINT64}'),
    (lambda c: c.register("x", 8, slices=8), 'slices of shard "x" is 8, must be a sequence of integers'),
    (lambda c: c.register("x", 8, ranks=[0, -1]), f'ranks of shard "x"[1] is -1, {INT32}'),
    (lambda c: c.register("x", 8, ranks=[2**32]), f'ranks of shard "x"[0] is {2**32}, {INT32}'),
    (lambda c: c.register("x", 8, ranks=[0.0]), f'ranks of shard "x"[0] is 0.0, {INT32}'),
    (lambda c: c.register("x", 8, 2**32 + 1), f'the type of parameters of shard "x" is {2**32 + 1}, {INT32}'),
    (lambda c: c.register("x", 8, odc.Type.F32, "f32"), f"the type of gradients of shard \"x\" is 'f32', {INT32}"),
    (lambda c: c.register("x", 8, memory="host"), f"memory of shard \"x\" is 'host', {INT32}"),
    (lambda c: c.register("a\0b", 8), "the name of a shard has a NUL character at byte 1, which ends a string of C"),
    (lambda c: c.register(b"x", 8), "the name of a shard is of type bytes, must be a string"),
    (lambda c: c.register("\udc80", 8), "the name of a shard cannot be encoded as UTF-8"),
    (lambda c: c.abort("a\0b"), "the text of abort has a NUL character at byte 1"),
    (lambda c: c.abort(7), "the text of abort is of type int, must be a string"),
    (lambda c: c.peer_stats(2**32), f"rank is {2**32}, {INT32}"),
    (lambda c: c.route(2**32), f"rank is {2**32}, {INT32}"),
    (lambda c: c.route(0, 2**32 + 1), f"memory is {2**32 + 1}, {INT32}"),
    (lambda c: c.all_reduce([1], 2**32 + 1), f"op is {2**32 + 1}, {INT32}"),
    (lambda c: c.sync([1], 2**32 + 1), f"op is {2**32 + 1}, {INT32}"),
    (lambda _: odc.init(rank=2**32, size=1), f"rank is {2**32}, {INT32}"),
    (lambda _: odc.init(rank=0, size=2**32 + 1), f"size is {2**32 + 1}, {INT32}"),
    (lambda _: odc.topology("a\0b"), "file has a NUL character at byte 1"),
    (lambda _: odc.topology(7), "file is of type int, must be a path"),
    (lambda _: odc.plan_cost("7b\0"), "the model has a NUL character at byte 2"),
    (lambda _: odc.plan([1], 2**32 + 1), f"ranks is {2**32 + 1}, {INT32}"),
    (lambda _: odc.plan([1], 1, max_tokens=-1), f"max_tokens is -1, {UINT64}"),
    (lambda _: odc.plan([1.5], 1), f"the length of sample 0 is 1.5, {UINT64}"),
]


def refused(rank: int, size: int, job: str, call: Callable[[Context], Any], words: str) -> None:
    with odc.init(rank=rank, size=size, job=job, timeout=30) as context:
        with pytest.raises(odc.ArgumentError) as caught:
            call(context)
        assert str(caught.value).startswith(words)
        assert context.all_reduce([1]) == [1]  # nothing sticks


@pytest.mark.parametrize(("call", "words"), CALLS, ids=[words for _, words in CALLS])
def test_what_c_would_misread_is_refused(call: Callable[[Context], Any], words: str) -> None:
    run_ranks(1, refused, call, words)


@pytest.mark.parametrize("name", ["job", "group", "host", "rendezvous", "secret", "device"])
def test_strings_of_a_configuration(name: str) -> None:
    for value, words in (
        ("cuda:0\0b", f"{name} has a NUL character at byte 6, which ends a string of C"),
        ("\udc80", f"{name} cannot be encoded as UTF-8: surrogates not allowed, character 0"),
        (7, f"{name} is of type int, must be a string"),
    ):
        if name == "device" and value == 7:
            continue  # an object whose str is a device, such as a torch.device
        with pytest.raises(odc.ArgumentError) as caught:
            odc.init(**{"rank": 0, "size": 1, "job": "x", name: value})
        assert str(caught.value) == words


def integers_of_numpy(rank: int, size: int, job: str) -> None:
    with odc.init(rank=rank, size=size, job=job, timeout=30) as context:
        shard = context.register("x", np.int64(8), slices=np.array([8]), ranks=np.array([0]))
        assert shard.slice.numel == 8


def test_integers_of_numpy_are_integers() -> None:
    run_ranks(1, integers_of_numpy)


def raises(rank: int, size: int, job: str) -> None:
    with (
        pytest.raises(ValueError if rank == 1 else odc.AbortedError) as caught,
        odc.init(rank=rank, size=size, job=job, timeout=30) as context,
    ):
        if rank == 1:
            raise ValueError("a\0b \udc80")
        context.sync()
    if rank == 0:
        assert r"ValueError: a\x00b \udc80" in str(caught.value)


def test_an_abort_is_told_whatever_the_exception_says() -> None:
    run_ranks(2, raises)
