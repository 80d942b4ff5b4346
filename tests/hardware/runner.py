# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a stage, each under a time limit of its own, and writes the results in JSON after each command,
so that they are kept however the rest ends."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

STAGE_SECONDS = 470.0
PRCTL = ctypes.CDLL(None).prctl
SAID = 3000  # characters of what a failed command said

Figures = dict[str, Any]


@dataclass(frozen=True)
class Result:
    name: str
    outcome: str  # passed, failed, skipped
    reason: str = ""
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """A command that has ended. `problem`: why it was ended, or its exit status; empty: none."""

    name: str
    output: str  # both streams
    errors: str
    problem: str
    seconds: float
    status: int = 0

    def said(self) -> str:
        return (self.output + self.errors)[-SAID:].strip()

    def failed(self, reason: str = "") -> list[Result]:
        words = "; ".join(part for part in (reason, self.problem, self.said()) if part)
        return [Result(self.name, "failed", words, self.seconds)]

    def skipped(self, reason: str) -> list[Result]:
        return [Result(self.name, "skipped", reason, self.seconds)]


Reader = Callable[[Finished], list[Result]]


@dataclass(frozen=True)
class Command:
    """`limit`: seconds, and `why` that many. `missing`: why it cannot run here; empty: it can."""

    name: str
    arguments: list[str]
    read: Reader
    limit: float
    why: str
    environment: dict[str, str] = field(default_factory=dict)
    missing: str = ""


# ---- the commands' output ----


def passed_if_it_ended_well(done: Finished) -> list[Result]:
    return done.failed() if done.problem else [Result(done.name, "passed", "", done.seconds)]


_TEST = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\w+)$", re.MULTILINE)


def cmocka(done: Finished) -> list[Result]:
    """Each test; skipped ones have printed why, in order. 77: all were skipped."""
    if done.status == 77:
        return done.skipped(done.said())
    seen: dict[str, str] = {}
    for outcome, name in _TEST.findall(done.errors + "\n" + done.output):
        seen[name] = outcome  # failed ones are listed again
    whys = iter(re.findall(r"^skipped, .*$", done.output, re.MULTILINE))
    results = []
    for name, outcome in seen.items():
        full = f"{done.name}: {name}"
        if outcome == "SKIPPED":
            results.append(Result(full, "skipped", next(whys, "the test does not say why")))
        elif outcome == "FAILED":
            results.append(Result(full, "failed", done.said()))
        else:
            results.append(Result(full, "passed"))
    if (done.problem and not any(one.outcome == "failed" for one in results)) or not results:
        results += done.failed()
    # The program's other output belongs to all of its tests, and is added to the first.
    says = [line for line in done.output.splitlines() if line and not line.startswith(("[", "skipped"))]
    first = replace(results[0], seconds=done.seconds, figures={"says": says[-40:]})
    return [first, *results[1:]]


def last_json(done: Finished) -> Any:
    """The last complete line that is a JSON object; None: there is none."""
    for line in reversed(done.output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return None


def results_as_json(done: Finished) -> list[Result]:
    """Objects, the last of which counts: {"results": [...]} with the fields of Result. Also a late command's."""
    said = last_json(done)
    if said is None:
        return done.failed("" if done.problem else "it printed no JSON")
    results = [Result(**one) for one in said["results"]]
    return results + replace(done, output="").failed() if done.problem else results


def figures_as_json(bars: Callable[[Figures], Figures]) -> Reader:
    """One object of figures, to which `bars` adds its verdicts."""

    def read(done: Finished) -> list[Result]:
        said = last_json(done)
        if done.problem or said is None:
            return done.failed("" if done.problem else "it printed no JSON")
        return [Result(done.name, "passed", "", done.seconds, {**said, "bars": bars(said)})]

    return read


def lines_of_tests(done: Finished, file: Path) -> list[Result]:
    """What plugin/odc_split.py wrote for each completed test. The last line may be incomplete."""
    last: dict[str, Result] = {}
    for line in file.read_text().split("\n")[:-1] if file.exists() else []:
        said = json.loads(line)
        name = f"{done.name}: {said['test'].split('::', 1)[-1]}"
        last[said["test"]] = Result(name, said["outcome"], said["reason"][-SAID:], said["seconds"])
    return list(last.values())


def junit(file: Path, lines: Path) -> Reader:
    """What pytest --junitxml wrote; if it did not get that far, the lines."""

    def read(done: Finished) -> list[Result]:
        try:
            cases = ElementTree.parse(file).iter("testcase")
        except (OSError, ElementTree.ParseError):
            ended = lines_of_tests(done, lines)
            return ended + done.failed(f"pytest wrote no XML; {len(ended)} tests had ended, and are listed")
        results = []
        for case in cases:
            outcome, reason = "passed", ""
            for part in case:
                if part.tag in ("failure", "error"):
                    outcome, reason = "failed", f"{part.get('message')}\n{(part.text or '')[-SAID:]}"
                elif part.tag == "skipped":
                    outcome, reason = "skipped", part.get("message") or ""
            seconds = float(case.get("time") or 0)
            results.append(Result(f"{done.name}: {case.get('name')}", outcome, reason, seconds))
        if (done.problem and not any(one.outcome == "failed" for one in results)) or not results:
            results += done.failed()
        return results

    return read


# ---- running ----


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Running:
    command: Command
    process: subprocess.Popen[bytes]
    output: Any
    errors: Any
    begin: float
    limit: float

    def over(self) -> bool:
        return self.process.poll() is not None or time.monotonic() - self.begin > self.limit

    def finish(self) -> Finished:
        late = self.process.poll() is None
        end(self.process)  # and what it left running
        problems = []
        if late:
            limit = f"its limit is {self.command.limit:g} s: {self.command.why}"
            problems.append(f"not done after {self.limit:.0f} s; {limit}")
        try:
            status = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:  # it is stuck in a driver
            status = -signal.SIGKILL
            problems.append("it does not end though it was killed")
        if status != 0 and not late:
            problems.append(f"ended with {status}")
        texts = []
        for file in (self.output, self.errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
            Path(file.name).unlink()
        seconds = round(time.monotonic() - self.begin, 3)
        return Finished(self.command.name, texts[0], texts[1], "; ".join(problems), seconds, status)


def in_a_group_of_its_own() -> None:
    """Started so that end() can end it; it also ends with this process, however that ends."""
    os.setpgid(0, 0)
    PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def as_name(words: str) -> str:
    return re.sub("[^A-Za-z0-9]+", "-", words)


def start(command: Command, left: float, folder: Path) -> Running:
    """Its output goes into files of `folder` until it is done, so that it is kept if this process is killed."""
    name = as_name(command.name)
    output, errors = (open(folder / f"running.{name}.{kind}", "w+b") for kind in ("out", "err"))  # noqa: SIM115
    process = subprocess.Popen(
        command.arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env={**os.environ, **command.environment},
        preexec_fn=in_a_group_of_its_own,
    )
    return Running(command, process, output, errors, time.monotonic(), min(command.limit, left))


class Stage:
    """Its results are in `folder`, and its commands' output in run.log there. `only`: a part of it, with a file of its
    own. `at_once`: commands that run at the same time. `until`: when the whole run is over, by time.monotonic()."""

    def __init__(
        self, name: str, only: str, folder: Path, where: Figures, at_once: int = 1, until: float = math.inf
    ) -> None:
        self.name = name
        self.only = only
        self.results: list[Result] = []
        part = f".{as_name(only)}" if only else ""
        self._folder = folder
        self._file = folder / f"{name}{part}.json"
        self._log = folder / "run.log"
        self._where = where
        self._at_once = at_once
        self._begin = time.monotonic()
        self._until = min(until, self._begin + STAGE_SECONDS)
        self._date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    def run(self, commands: Iterator[Command]) -> None:
        self._write(complete=False)
        running: list[Running] = []
        try:
            waiting = list(commands)
            while waiting or running:
                while waiting and len(running) < self._at_once:
                    self._begin_one(waiting.pop(0), running)
                for one in [one for one in running if one.over()]:
                    running.remove(one)
                    self._keep(one.command, one.finish())
                time.sleep(0.02)
        finally:
            for one in running:
                end(one.process)
        self._write(complete=True)

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _begin_one(self, command: Command, running: list[Running]) -> None:
        if command.missing:
            self._add([Result(command.name, "skipped", command.missing)])
        elif self._left() <= 5:
            why = f"not begun: the stage has {STAGE_SECONDS:.0f} s, and the run RUN_SECONDS if set"
            self._add([Result(command.name, "failed", why)])
        else:
            running.append(start(command, self._left(), self._folder))

    def _keep(self, command: Command, done: Finished) -> None:
        words = " ".join([*(f"{k}={v}" for k, v in command.environment.items()), *command.arguments])
        with self._log.open("a") as log:
            print(f"==== {command.name}: {words}\n{done.output}{done.errors}{done.problem}", file=log)
        try:
            self._add(command.read(done))
        except (KeyError, TypeError, ValueError) as error:
            self._add(done.failed(f"what it printed cannot be read: {type(error).__name__}: {error}"))

    def _add(self, results: list[Result]) -> None:
        self.results += results
        for one in results:
            reason = one.reason.strip().splitlines()
            print(f"{one.outcome:7} {one.seconds:7.1f} s  {self.name}: {one.name}", *reason[:1], sep="  ", flush=True)
            for what, bar in one.figures.get("bars", {}).items():
                print(f"        {what}: {bar['reached']:.4g}, bar {bar['bar']}: {bar['verdict']}", flush=True)
        self._write(complete=False)

    def count(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self.results)

    def _write(self, *, complete: bool) -> None:
        counts = {outcome: self.count(outcome) for outcome in ("passed", "failed", "skipped")}
        seconds = round(time.monotonic() - self._begin, 1)
        this = {"stage": self.name, "only": self.only, "complete": complete, "date": self._date, "seconds": seconds}
        results = [asdict(one) for one in self.results]
        text = json.dumps({**this, **self._where, **counts, "results": results}, indent=1)
        scratch = self._file.with_name(self._file.name + ".tmp")
        scratch.write_text(text + "\n")
        scratch.replace(self._file)
