# SPDX-License-Identifier: Apache-2.0
"""Signals while C waits: handlers run in the main thread, what they raise ends the call, and nothing is lost."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import libodc
from libodc import Shard
from libodc.context import Context

WAITS: dict[str, Callable[[Context, Shard], Any]] = {
    "init": lambda context, _: libodc.init(rank=context.rank, size=2, job=f"{os.getppid()}", group="2nd", timeout=30),
    "gather": lambda _, shard: shard.gather(np.zeros(10, np.float32)),
    "scatter_add": lambda _, shard: shard.scatter_add(np.ones(10, np.float32)),
    "wait": lambda _, shard: shard.gather_start(np.zeros(10, np.float32)).wait(),
    "sync": lambda context, _: context.sync([1.0]),
    "all_reduce": lambda context, _: context.all_reduce([1.0]),
}


class Stop(Exception):
    """Raised by a program's own handler."""


def send(number: int) -> None:
    """While the caller is in its next call."""
    threading.Timer(0.2, os.kill, (os.getpid(), number)).start()


def is_ended(rank: int, size: int, job: str, call: str, ended: Any) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    shard = context.register("w", 10)
    wait = WAITS[call]
    if call == "all_reduce":  # between sync and publish
        context.publish()
        context.sync()
    if rank == 1:
        assert ended.wait(60)
    elif call != "all_reduce":
        context.publish()
    if rank == 0:
        stop, noted = Stop("by the program"), list[int]()

        def handle(*_: Any) -> None:
            raise stop

        handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: handle}
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGUSR1, lambda *_: noted.append(1))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()  # does not raise: the call goes on
        send(signal.SIGTERM)
        with pytest.raises(Stop) as caught:
            wait(context, shard)
        assert caught.value is stop and noted == [1]
        assert isinstance(caught.value.__cause__, libodc.InterruptedWaitError)
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            wait(context, shard)
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        ended.set()
        if call == "init":
            return
    elif call == "init":
        return
    elif call != "all_reduce":
        context.publish()
    wait(context, shard)
    if call not in ("sync", "all_reduce"):
        context.sync()


@pytest.mark.parametrize("call", WAITS)
def test_what_a_handler_raises_ends_every_wait_of_the_main_thread(call: str) -> None:
    run_ranks(2, is_ended, call, multiprocessing.Event())


def changes_no_handler(rank: int, size: int, job: str) -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("a call has set a signal handler, which costs more than the call itself")

    with pytest.MonkeyPatch.context() as patch:
        for module in ("signal", "_signal"):
            patch.setattr(importlib.import_module(module), "signal", refuse)
        context = libodc.init(rank=rank, size=size, job=job, timeout=30)
        shard = context.register("w", 10)
        for _ in range(2):
            context.publish()
            for call in ("gather", "scatter_add", "wait", "sync", "all_reduce"):
                WAITS[call](context, shard)


def test_calls_change_no_handler() -> None:
    run_ranks(2, changes_no_handler)


def waits_in_a_thread(rank: int, size: int, job: str, ended: Any) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    shard = context.register("w", 10)
    if rank == 1:
        assert ended.wait(60)
    context.publish()
    if rank == 0:
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                shard.gather(np.zeros(10, np.float32))
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
        time.sleep(0.3)  # in which the call asks whether to end
        assert thread.is_alive()
        ended.set()
        thread.join()
        assert raised == []
    context.sync()


def test_a_wait_of_another_thread_goes_on() -> None:
    run_ranks(2, waits_in_a_thread, multiprocessing.Event())


def waits_in_threads(rank: int, size: int, job: str, ended: Any) -> None:
    together = threading.Barrier(8)

    def interrupted() -> bool:
        if threading.current_thread() is threading.main_thread():  # in init
            return False
        together.wait()
        raise Stop(threading.get_ident())

    context = libodc.init(rank=rank, size=size, job=job, timeout=30, interrupted=interrupted)
    shard = context.register("w", 10)
    if rank == 1:
        assert ended.wait(60)
        return
    context.publish()
    raised: dict[int, list[int]] = {}

    def wait() -> None:
        with pytest.raises(Stop) as caught:
            shard.gather(np.zeros(10, np.float32))
        raised[threading.get_ident()] = list(caught.value.args)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    ended.set()
    assert raised == {one.ident: [one.ident] for one in threads}


def test_each_thread_raises_its_own_error() -> None:
    run_ranks(2, waits_in_threads, multiprocessing.Event())


def keeps_handlers(rank: int, size: int, job: str, looked: Any) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    if rank == 1:
        assert looked.wait(60)
        context.sync()
        return
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    seen: list[Any] = []

    def look() -> None:
        seen.extend(signal.getsignal(number) for number in signal.valid_signals())
        looked.set()

    threading.Timer(0.2, look).start()
    context.sync()
    assert seen == before


def test_handlers_are_the_programs_during_a_call() -> None:
    run_ranks(2, keeps_handlers, multiprocessing.Event())


class Killed(logging.Handler):
    """Ctrl-C comes while a line of the log is handled."""

    def emit(self, record: logging.LogRecord) -> None:
        if "calls odc_gather" in record.getMessage():
            os.kill(os.getpid(), signal.SIGINT)


def is_killed_in_callbacks(rank: int, size: int, job: str, ended: Any) -> None:
    logging.getLogger("libodc").setLevel(5)
    asked = [1]

    def interrupted() -> bool:
        asked[0] += 1
        if asked[0] == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    def all_gather(mine: bytes) -> list[bytes]:
        os.kill(os.getpid(), signal.SIGINT)
        return [mine]

    with pytest.raises(KeyboardInterrupt):
        libodc.init(rank=rank, size=size, all_gather=all_gather)
    context = libodc.init(rank=rank, size=size, job=job, timeout=30, interrupted=interrupted)
    shard, full = context.register("w", 10), np.zeros(10, np.float32)
    context.publish()
    shard.gather(full)
    if rank == 0:
        handler = Killed()
        logging.getLogger("libodc").addHandler(handler)
        with pytest.raises(KeyboardInterrupt):
            shard.gather(full)  # waits for nobody, and succeeds
        logging.getLogger("libodc").removeHandler(handler)
        asked[0] = 0
        with pytest.raises(KeyboardInterrupt):
            context.sync()
        ended.set()
    else:
        assert ended.wait(60)
    context.sync()


def test_ctrl_c_in_a_callback_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODC_LOG", raising=False)
    run_ranks(2, is_killed_in_callbacks, multiprocessing.Event())


class Nested(logging.Handler):
    """Raises in one line of a sync, and calls another context in the next, while the error is kept for the sync. What
    an Exception ends is the handler only."""

    def __init__(self, inner: Context) -> None:
        super().__init__()
        self.inner, self.is_inside, self.called = inner, False, False

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if self.is_inside:
            if "calls odc_publish" in line:
                raise SystemExit("inner")
        elif "calls odc_minibatch_sync" in line:
            raise SystemExit("outer")
        else:
            self.is_inside = True
            with pytest.raises(SystemExit, match="inner"):
                self.inner.publish()
            self.inner.sync()  # raises nothing
            self.is_inside, self.called = False, True


def calls_in_a_callback(rank: int, size: int, job: str) -> None:
    logging.getLogger("libodc").setLevel(5)
    inner, outer = (libodc.init(rank=0, size=1, job=job, group=name) for name in ("inner", "outer"))
    outer.publish()
    handler = Nested(inner)
    logging.getLogger("libodc").addHandler(handler)
    with pytest.raises(SystemExit, match="outer"):
        outer.sync()
    logging.getLogger("libodc").removeHandler(handler)
    assert handler.called


def test_a_call_in_a_callback_raises_its_own_errors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODC_LOG", raising=False)
    run_ranks(1, calls_in_a_callback)


class Joined(logging.Handler):
    """Raises when odc_init has nothing left to wait for, so it returns a context."""

    def emit(self, record: logging.LogRecord) -> None:
        if "has joined after" in record.getMessage():
            raise SystemExit("joined")


def is_interrupted_when_joined(rank: int, size: int, job: str, lost: Any) -> None:
    if rank == 0:
        logging.getLogger("libodc").setLevel(logging.INFO)
        logging.getLogger("libodc").addHandler(Joined())
        with pytest.raises(SystemExit) as caught:
            libodc.init(rank=rank, size=size, job=job, timeout=30)
        assert lost.wait(60)
        assert caught.tb is not None  # has been there all the while
        return
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    context.publish()
    with pytest.raises(libodc.PeerLostError, match=r"rank 0 .*left"):
        context.sync()
    lost.set()


def test_an_interrupted_init_leaves_the_job_although_its_traceback_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODC_LOG", raising=False)
    run_ranks(2, is_interrupted_when_joined, multiprocessing.Event())


ENDS = """
import os, sys, threading, time, libodc

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)  # while the interpreter ends: calls ask several times whether to end

slow = Slow()
asked = set()
context = libodc.init(
    rank=int(sys.argv[1]), size=2, job=sys.argv[2], timeout=30, interrupted=lambda: asked.add(threading.get_ident())
)
shard = context.register("w", 10)
if sys.argv[1] == "0":
    context.publish()
    for _ in range(4):
        threading.Thread(target=lambda: shard.gather(bytearray(40)), daemon=True).start()
    deadline = time.monotonic() + 30
    while len(asked - {threading.get_ident()}) < 4:  # they wait
        assert time.monotonic() < deadline, asked
        time.sleep(0.001)
    print("ends")
else:
    sys.stdin.read()
"""


def test_an_interpreter_that_ends_slowly_is_not_entered() -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS, str(rank), f"ends-{os.getpid()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        for rank in range(2)
    ]
    output, errors = ranks[0].communicate(timeout=60)
    assert (ranks[0].returncode, output, errors) == (0, "ends\n", "")
    ranks[1].communicate(timeout=60)
