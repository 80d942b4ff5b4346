# SPDX-License-Identifier: Apache-2.0
"""A rank at half speed: another process is busy on its core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from corpus import InputError

_BUSY = "import os\nwhile os.getppid() == {parent}: pass"


def check_cores(slow: int | None, ranks: int) -> None:
    """Raises InputError."""
    if slow is None:
        return
    if slow >= ranks:
        raise InputError(f"--slow {slow} is not a rank of this job, which has {ranks}")
    cores = len(os.sched_getaffinity(0))
    if cores < ranks:
        raise InputError(f"--slow needs a core for each of the {ranks} ranks, and this host gives them {cores}")


@contextmanager
def busy_neighbour(slow: int | None, rank: int) -> Iterator[Callable[[], float]]:
    """Gives each rank of this host a core of its own, and rank `slow`'s core to a busy process, too, until the end.
    Yields a function that returns the seconds of this rank's busy process on the core; 0 where it has none."""
    if slow is None:
        yield lambda: 0.0
        return
    allowed = os.sched_getaffinity(0)
    _move_threads({sorted(allowed)[rank]})
    command = [sys.executable, "-c", _BUSY.format(parent=os.getpid())]
    busy = subprocess.Popen(command) if rank == slow else None
    try:
        yield lambda: 0.0 if busy is None else _seconds(busy.pid)
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
        _move_threads(allowed)


def _seconds(pid: int) -> float:
    """As proc_pid_stat(5) has it."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _move_threads(cores: set[int]) -> None:
    """Those of libraries, too."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread), cores)
