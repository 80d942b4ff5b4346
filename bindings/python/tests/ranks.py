# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of a test as processes under a watchdog."""

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

_FORK = multiprocessing.get_context("fork")
_jobs = iter(range(1_000_000))


def leave_threads_behind() -> None:
    """A forked process has none of its parent's threads, and torch would wait for them."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _be_rank(fn: Callable[..., None], rank: int, size: int, job: str, args: tuple[Any, ...]) -> None:
    # ODC_TEST_HOSTS=2: ranks that meet by a callback are on two simulated hosts.
    if hosts := os.environ.get("ODC_TEST_HOSTS"):
        os.environ.update(ODC_HOST_ID=f"host {rank % int(hosts)}", ODC_INTERFACE="lo")
    leave_threads_behind()
    try:
        fn(rank, size, job, *args)
    except BaseException:
        print(f"rank {rank}:", flush=True)
        traceback.print_exc()
        os._exit(1)


def run_ranks(
    size: int, fn: Callable[..., None], *args: Any, mortal: tuple[int, ...] = (), seconds: float = 90
) -> None:
    """Runs fn(rank, size, job, *args) in each process; `mortal` ranks may end in any way."""
    job = f"python-{os.getpid()}-{next(_jobs)}"
    ranks = [_FORK.Process(target=_be_rank, args=(fn, rank, size, job, args)) for rank in range(size)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for rank in late:
        ranks[rank].kill()
        ranks[rank].join()
    failed = [rank for rank, process in enumerate(ranks) if process.exitcode != 0 and rank not in mortal]
    assert not late, f"ranks {late} were still running after {seconds} s"
    assert not failed, f"ranks {failed} failed"
