# SPDX-License-Identifier: Apache-2.0
"""What other programs take of this machine's processors while something is measured, and what the machine is."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

LEAST_PAIRS = 3  # as in odc replay, whose pairs take as long
BUSY = 0.2  # above this share a measured gain says more of the other programs


class MachineLoad:
    """Processor time of all programs since the construction, from /proc/stat as in proc_stat(5)."""

    def __init__(self) -> None:
        self._begin = _ticks()

    def others(self, own_seconds: float) -> float | None:
        """The share of the processors' time that is not in `own_seconds`; None where it cannot be known."""
        end = _ticks()
        if self._begin is None or end is None or end[1] <= self._begin[1]:
            return None
        busy, whole = (after - before for after, before in zip(end, self._begin, strict=True))
        return min(1.0, max(0.0, (busy - own_seconds * os.sysconf("SC_CLK_TCK")) / whole))


def _ticks() -> tuple[int, int] | None:
    """Busy ones and all."""
    try:
        user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(others)
    return busy, busy + idle + iowait


def disturbed_line(others: float | None, repeated: int) -> list[str]:
    """Where pairs of turns were repeated."""
    if repeated == 0 or others is None:
        return []
    return [f"other programs used {others:.0%} of the processors, pairs of turns repeated: {repeated}"]


_UNRESOLVED = "verdict: not resolved: "


def verdict(measured: str, others: float | None, pairs: int, *doubts: str) -> str:
    """`measured`: the gain, of so many pairs of turns. `doubts`: other reasons why it is none."""
    why = list(doubts)
    if others is not None and others > BUSY:
        why.append(f"other programs used {others:.0%} of the processors")
    if pairs < LEAST_PAIRS:
        why.append(f"{LEAST_PAIRS} pairs of turns are the least")
    return f"{_UNRESOLVED}{', '.join(why)}" if why else f"verdict: {measured}"


def resolved(verdict: str) -> bool:
    """Whether the measured gain is one, and may be in tables and pictures."""
    return not verdict.startswith(_UNRESOLVED)


def resolution(verdict: str) -> dict[str, object]:
    """For summary.json, beside each gain."""
    why = None if resolved(verdict) else verdict.removeprefix(_UNRESOLVED)
    return {"resolved": why is None, "why_not_resolved": why}


def circumstances(others: float | None, repeated: int) -> dict[str, object]:
    """For summary.json. `repeated`: pairs of turns."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
        "others_cpu_share": others,
        "pairs_repeated": repeated,
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
