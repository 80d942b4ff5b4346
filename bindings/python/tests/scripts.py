# SPDX-License-Identifier: Apache-2.0
"""Runs a script in forked processes, which have what this one has imported: importing torch takes seconds."""

import logging
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

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
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


class Script:
    """`words`: the path of the script and its arguments."""

    def __init__(self, words: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self._streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
        arguments = words, environment, folder, self._streams
        self._process = _FORK.Process(target=_be_script, args=arguments, daemon=True)
        self._process.start()

    def end(self, seconds: float) -> tuple[int, str, str]:
        """Its status, stdout and stderr."""
        self._process.join(seconds)
        late = self._process.is_alive()
        self._process.kill()
        self._process.join()
        said = [os.pread(stream, os.fstat(stream).st_size, 0).decode() for stream in self._streams]
        for stream in self._streams:
            os.close(stream)
        assert not late, f"still running after {seconds} s: {said}"
        assert self._process.exitcode is not None
        return self._process.exitcode, *said


def run_forked(ranks: int, words: list[str], folder: Path, seconds: float) -> CompletedProcess[str]:
    """As ranks of a job, or alone without a launcher. The status is that of the first rank that failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ODC_")}
    if ranks > 1:
        environment |= {"ODC_SIZE": str(ranks), "ODC_JOB": f"script-{os.getpid()}-{next(_jobs)}"}
    started = []
    for rank in range(ranks):
        mine = {"ODC_RANK": str(rank)} if ranks > 1 else {}
        started.append(Script(words, environment | mine, folder))
    statuses, out, err = zip(*(one.end(seconds) for one in started), strict=True)
    return CompletedProcess(words, next(filter(None, statuses), 0), "".join(out), "".join(err))
