# SPDX-License-Identifier: Apache-2.0
"""The library's log in logging's logger "libodc": its levels, ODC_LOG, and how an interpreter ends that has it on."""

import logging
import os
import re
import subprocess
import sys
import uuid

import pytest

import libodc
from libodc._log import TRACE

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z odc (error|warn|info|debug|trace) "
    r"rank=\d+/\d+ host=\S+ pid=\d+ minibatch=\d+( group=\S+)?: .+"
)

# Two ranks, threads of this process, on hosts of their own where `hosts` says so.
RANKS = """
import logging, os, sys, threading
import libodc

barrier, infos = threading.Barrier(2, timeout=60), [b"", b""]
contexts = [None, None]

def join(rank, hosts=False):
    def all_gather(mine):
        infos[rank] = mine
        barrier.wait()
        both = list(infos)
        barrier.wait()
        return both

    host = {"host": f"host{rank}"} if hosts else {}
    contexts[rank] = libodc.init(rank=rank, size=2, job=sys.argv[1], timeout=60, all_gather=all_gather, **host)

def join_both(hosts=False):
    threads = [threading.Thread(target=join, args=(rank, hosts)) for rank in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return contexts
"""


def run(script: str, log: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ODC_LOG"}
    command = [sys.executable, "-c", RANKS + script, uuid.uuid4().hex]
    return subprocess.run(
        command,
        env=environment | ({"ODC_LOG": log} if log is not None else {}),
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",  # not that of the sources
    )


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(LINE.fullmatch(line) for line in lines), done.stderr
    return lines


def use_a_job_of_one_rank() -> None:
    with libodc.init(rank=0, size=1) as context:
        shard = context.register("layer", 10)
        context.publish()
        shard.gather(bytearray(40))
        context.sync()


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO, logging.DEBUG, TRACE])
def test_levels_are_the_loggers(level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODC_LOG", raising=False)
    with caplog.at_level(level, "libodc"):
        use_a_job_of_one_rank()
    said = [record for record in caplog.records if record.name == "libodc"]
    assert all(LINE.fullmatch(record.getMessage()) for record in said)
    assert {record.levelno for record in said} == {one for one in (logging.INFO, logging.DEBUG, TRACE) if one >= level}
    calls = [record for record in said if "calls odc_gather" in record.getMessage()]
    assert len(calls) == (1 if level == TRACE else 0)


def test_nothing_is_printed_unless_asked() -> None:
    assert lines_of(run("join_both(); contexts.clear()")) == []


def test_odc_log_prints_where_logging_is_not_set_up() -> None:
    lines = lines_of(run("join_both()[0].close()", "info"))
    assert sum("has joined after" in line for line in lines) == 2
    assert not any(" odc debug " in line for line in lines)


def test_odc_log_sets_the_level_of_a_program_that_has_set_logging_up() -> None:
    script = 'logging.basicConfig(format="%(levelname)s|%(message)s", stream=sys.stdout); join_both()[0].close()'
    done = run(script, "debug")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert any(line.startswith("DEBUG|") for line in lines) and any(line.startswith("INFO|") for line in lines)
    assert all(LINE.fullmatch(line.partition("|")[2]) for line in lines)


def test_a_wrong_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODC_LOG", "loud")
    with pytest.raises(
        libodc.ArgumentError, match='ODC_LOG="loud" is wrong: it must be error, warn, info, debug or trace'
    ):
        libodc.init(rank=0, size=1)


def test_each_context_tells_of_its_own_ranks() -> None:
    script = """
join_both(hosts=True)
shards = [context.register("layer", 1 << 20) for context in contexts]
def use(rank):
    for minibatch in range(3):
        contexts[rank].publish()
        shards[rank].gather(bytearray(4 << 20))
        contexts[rank].sync()
threads = [threading.Thread(target=use, args=(rank,)) for rank in (0, 1)]
[one.start() for one in threads]
[one.join() for one in threads]
"""
    lines = lines_of(run(script, "trace"))
    for rank in (0, 1):
        mine = [line for line in lines if f" rank={rank}/2 host=host{rank} " in line]
        assert sum("calls odc_gather of shard" in line for line in mine) == 3
        assert sum("minibatch=2: syncs" in line for line in mine) == 1
        assert any("reaches the host memory of 1 rank of 1 other host by fabric" in line for line in mine)
    assert all(re.search(r" rank=([01])/2 host=host\1 ", line) for line in lines)


@pytest.mark.parametrize("log", ["trace", "warn"])
def test_an_interpreter_ends_while_threads_wait(log: str) -> None:
    script = """
join_both()
shards = [context.register("layer", 10) for context in contexts]
contexts[0].publish()
waiting = threading.Event()
def wait():
    waiting.set()
    shards[0].gather(bytearray(40))  # rank 1 never publishes
threading.Thread(target=wait, daemon=True).start()
waiting.wait()
import time
time.sleep(0.2)
print("ends")
"""
    done = run(script, log)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
    assert all(LINE.fullmatch(line) for line in done.stderr.splitlines()), done.stderr


def test_what_a_handler_raises_ends_nothing() -> None:
    script = """
class Broken(logging.Handler):
    def emit(self, record):
        raise ValueError("a handler that is broken")
logging.getLogger("libodc").addHandler(Broken())
for context in join_both():
    context.close()
print("ends")
"""
    done = run(script, "info")
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
