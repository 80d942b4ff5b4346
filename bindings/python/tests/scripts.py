# SPDX-License-Identifier: Apache-2.0
"""Runs a script in forked processes, which have what this one has imported: importing torch takes seconds. Unlike those
of a program, their uncaught exceptions do not come to sys.excepthook, and functions of atexit do not run."""

import logging
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from ranks import leave_threads_behind

Ended = tuple[int, str, str]
"""Status, stdout and stderr."""
_FORK = multiprocessing.get_context("fork")
_jobs = iter(range(1_000_000))


def _be_script(words: list[str], environment: Mapping[str, str], folder: Path, streams: list[int]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    logging.root.handlers.clear()  # pytest's
    leave_threads_behind()
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


class Script:
    """`words`: the path of the script and its arguments."""

    def __init__(self, words: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self._streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
        arguments = words, environment, folder, self._streams
        self.process = _FORK.Process(target=_be_script, args=arguments, daemon=True)
        self.process.start()

    def stop(self) -> Ended:
        """Kills it if it still runs."""
        self.process.kill()
        self.process.join()
        said = [os.pread(stream, os.fstat(stream).st_size, 0).decode() for stream in self._streams]
        for stream in self._streams:
            os.close(stream)
        assert self.process.exitcode is not None
        return self.process.exitcode, *said


def end_all(scripts: Sequence[Script], seconds: float) -> list[Ended]:
    """Waits so long for all of them together; none is left."""
    deadline = time.monotonic() + seconds
    try:
        for one in scripts:
            one.process.join(max(0.0, deadline - time.monotonic()))
        late = [number for number, one in enumerate(scripts) if one.process.is_alive()]
    finally:
        ended = [one.stop() for one in scripts]
    assert not late, f"{late} still ran after {seconds} s: {ended}"
    return ended


def run_forked(ranks: int, words: list[str], folder: Path, seconds: float) -> CompletedProcess[str]:
    """As ranks of a job, or alone without a launcher. The status is that of the first rank that failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ODC_")}
    if ranks > 1:
        environment |= {"ODC_SIZE": str(ranks), "ODC_JOB": f"script-{os.getpid()}-{next(_jobs)}"}
    numbers = [{"ODC_RANK": str(rank)} if ranks > 1 else {} for rank in range(ranks)]
    started = [Script(words, environment | mine, folder) for mine in numbers]
    statuses, out, err = zip(*end_all(started, seconds), strict=True)
    return CompletedProcess(words, next(filter(None, statuses), 0), "".join(out), "".join(err))
