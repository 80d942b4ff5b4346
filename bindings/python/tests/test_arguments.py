# SPDX-License-Identifier: Apache-2.0
"""Values that ctypes or C would misread raise an error."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import libodc
from libodc import Context

UINT64 = f"must be an integer in 0..{2**64 - 1}"
INT32 = f"must be an integer in 0..{2**31 - 1}"
TYPE = "must be one of libodc.Type: F32, F64, BF16, F16, BYTES"
MEMORY = "must be one of libodc.Memory: HOST, GPU"
REDUCTION = "must be one of libodc.Reduction: SUM, MAX"
LONG = 10**5000  # Python refuses to print it


class Index:
    """An integer, unless asked for it."""

    def __index__(self) -> int:
        raise KeyError("no such integer")

    def __repr__(self) -> str:
        return 100 * "x"


class CUstream:
    """Like that of cuda.bindings, which has no __index__."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __int__(self) -> int:
        return self._handle


class Torchs:
    def __init__(self, handle: Any) -> None:
        self.cuda_stream = handle


class Others:
    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, Any]:
        return 0, self._handle


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
    (lambda c: c.register("x", LONG), f'numel of shard "x" is of type int and cannot be shown, {UINT64}'),
    (lambda c: c.register("x", Index()), f'numel of shard "x" is {80 * "x"}..., {UINT64}'),
    (lambda c: c.register("x", 8, 2**32 + 1), f'the type of parameters of shard "x" is {2**32 + 1}, {TYPE}'),
    (lambda c: c.register("x", 8, 0), f'the type of parameters of shard "x" is 0, {TYPE}'),
    (lambda c: c.register("x", 8, libodc.Type.F32, "f32"), f"the type of gradients of shard \"x\" is 'f32', {TYPE}"),
    (lambda c: c.register("x", 8, None, Index()), f'the type of gradients of shard "x" is {80 * "x"}..., {TYPE}'),
    (lambda c: c.register("x", 8, memory="host"), f"memory of shard \"x\" is 'host', {MEMORY}"),
    (lambda c: c.register("x", 8, memory=None), f'memory of shard "x" is None, {MEMORY}'),
    (lambda c: c.register("a\0b", 8), "the name of a shard has a NUL character at byte 1, which ends a string of C"),
    (lambda c: c.register(LONG, 8), "the name of a shard is of type int, must be a string"),
    (lambda c: c.register(b"x", 8), "the name of a shard is of type bytes, must be a string"),
    (lambda c: c.register("\udc80", 8), "the name of a shard cannot be encoded as UTF-8"),
    (lambda c: c.abort("a\0b"), "the text of abort has a NUL character at byte 1"),
    (lambda c: c.abort(7), "the text of abort is of type int, must be a string"),
    (lambda c: c.peer_stats(2**32), f"rank is {2**32}, {INT32}"),
    (lambda c: c.route(2**32), f"rank is {2**32}, {INT32}"),
    (lambda c: c.route(0, 2**32 + 1), f"memory is {2**32 + 1}, {MEMORY}"),
    (lambda c: c.all_reduce([1], 2**32 + 1), f"op is {2**32 + 1}, {REDUCTION}"),
    (lambda c: c.sync([1], 2**32 + 1), f"op is {2**32 + 1}, {REDUCTION}"),
    (lambda c: c.publish(-1), f"the handle of the stream is -1, {UINT64}"),
    (lambda c: c.publish(Torchs(2**64 + 5)), f"the handle of the stream is {2**64 + 5}, {UINT64}"),
    (lambda c: c.publish(Torchs(-1)), f"the handle of the stream is -1, {UINT64}"),
    (lambda c: c.publish(Others(2**64 + 5)), f"the handle of the stream is {2**64 + 5}, {UINT64}"),
    (lambda c: c.publish(Others(CUstream(-2))), f"the handle of the stream is -2, {UINT64}"),
    (lambda c: c.publish(Others(None)), f"the handle of the stream is None, {UINT64}"),
    (lambda _: libodc.init(rank=2**32, size=1), f"rank is {2**32}, {INT32}"),
    (lambda _: libodc.init(rank=0, size=2**32 + 1), f"size is {2**32 + 1}, {INT32}"),
    (lambda _: libodc.topology("a\0b"), "file has a NUL character at byte 1"),
    (lambda _: libodc.topology(7), "file is of type int, must be a path"),
    (lambda _: libodc.topology("a\ud800"), "file cannot be encoded as UTF-8: surrogates not allowed, character 1"),
    (lambda _: libodc.plan_cost("7b\0"), "the model has a NUL character at byte 2"),
    (lambda _: libodc.plan([1], 2**32 + 1), f"ranks is {2**32 + 1}, {INT32}"),
    (
        lambda _: libodc.plan([1], 1, policy=7),
        "policy is 7, must be one of libodc.Policy: LOCAL_SORT, LB_MICRO, LB_MINI, SORTED_ROWS",
    ),
    (lambda _: libodc.plan([1], 1, max_tokens=-1), f"max_tokens is -1, {UINT64}"),
    (lambda _: libodc.plan([1.5], 1), f"the length of sample 0 is 1.5, {UINT64}"),
]


def refused(rank: int, size: int, job: str, call: Callable[[Context], Any], message: str) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        with pytest.raises(libodc.ArgumentError) as caught:
            call(context)
        assert str(caught.value).startswith(message)
        assert context.all_reduce([1]) == [1]  # the context is unaffected


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_what_c_would_misread_is_refused(call: Callable[[Context], Any], message: str) -> None:
    run_ranks(1, refused, call, message)


@pytest.mark.parametrize("name", ["job", "group", "host", "rendezvous", "secret", "device"])
def test_strings_of_a_configuration(name: str) -> None:
    for value, message in (
        ("cuda:0\0b", f"{name} has a NUL character at byte 6, which ends a string of C"),
        ("\udc80", f"{name} cannot be encoded as UTF-8: surrogates not allowed, character 0"),
        (7, f"{name} is of type int, must be a string"),
    ):
        if name == "device" and value == 7:
            continue  # an object whose str is a device, such as a torch.device
        with pytest.raises(libodc.ArgumentError) as caught:
            libodc.init(**{"rank": 0, "size": 1, "job": "x", name: value})
        assert str(caught.value) == message


def integers_of_numpy(rank: int, size: int, job: str) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        shard = context.register("x", np.int64(8), slices=np.array([8]), ranks=np.array([0]))
        assert shard.slice.numel == 8
        for stream in np.int64(7), np.uint64(7), Torchs(np.uint64(7)), Others(np.int64(7)):
            with pytest.raises(
                libodc.UnsupportedError, match='a stream is given for shard "x", which is in host memory'
            ):
                shard.publish(stream)
        shard.publish(np.int64(0))


def test_integers_of_numpy_are_integers() -> None:
    run_ranks(1, integers_of_numpy)


def plain_integers(rank: int, size: int, job: str) -> None:
    """Plain integers mean the members of the enumerations."""
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        shard = context.register("x", 8, 2, np.int64(1), memory=np.int64(1))
        description = shard.description
        assert description.parameters is libodc.Type.F64 and description.gradients is libodc.Type.F32
        assert description.memory is libodc.Memory.HOST
        assert context.register("gradients", 8, None, 1).description.parameters is None
        np.asarray(shard.slice.parameters)[:] = 3
        context.publish()
        full = np.empty(8)
        shard.gather(full)
        assert (full == 3).all()
        shard.scatter_add(np.ones(8, np.float32))
        assert context.sync([rank], 2) == [0]
    assert libodc.plan([1], 1, policy=3) == libodc.plan([1], 1, policy=libodc.Policy.LB_MINI)


def test_plain_integers_are_members_of_enumerations() -> None:
    run_ranks(1, plain_integers)


class Silent(Exception):
    def __str__(self) -> str:
        raise KeyError("no message")


class Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def raises(rank: int, size: int, job: str, error: Exception, message: str) -> None:
    with (
        pytest.raises(type(error) if rank == 1 else libodc.AbortedError) as caught,
        libodc.init(rank=rank, size=size, job=job, timeout=30) as context,
    ):
        if rank == 1:
            raise error
        context.sync()
    if rank == 0:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a\0b \udc80"), r"ValueError: a\x00b \udc80"),
        (Silent(), "Silent: without a message: asking for it raised KeyError"),
    ],
)
def test_an_abort_is_told_whatever_the_exception_says(error: Exception, message: str) -> None:
    run_ranks(2, raises, error, message)


def interrupted_in_words(rank: int, size: int, job: str) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    if rank == 1:
        with pytest.raises(KeyboardInterrupt), context:
            raise Interrupting
        with pytest.raises(libodc.PhaseError, match="this context has been closed"):
            context.sync()
    else:
        with pytest.raises(libodc.PeerLostError, match="left in minibatch 0"):
            context.sync()


def test_a_block_leaves_the_job_even_if_its_abort_is_interrupted() -> None:
    run_ranks(2, interrupted_in_words)
