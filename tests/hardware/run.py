# SPDX-License-Identifier: Apache-2.0
"""Runs stages for tests/hardware/run.sh, which sets the environment, and writes a file of results for each."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner import Stage
from stages import HERE, STAGES, TREE, Setting, at_once, chosen, named, summary


def gpus() -> dict[str, Any]:
    """Describes the GPUs. Uses another process, as this one starts others. Without a GPU, returns why; then only
    `environment` can run."""
    none: dict[str, Any] = {"gpus": [], "cuda": None, "fake": False}
    try:
        asked = subprocess.run([sys.executable, str(HERE / "cuda_api.py")], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return {**none, "why_none": "CUDA did not begin within 120 s"}
    if asked.returncode != 0:
        return {**none, "why_none": asked.stderr.strip()[-300:]}
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def driver_version() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=60)
    return asked.stdout.split("\n")[0].strip() if asked.returncode == 0 else None


def where() -> dict[str, Any]:
    made_of = json.loads((TREE / "made_of.json").read_text())
    torch = metadata.version("torch") if find_spec("torch") else None
    versions = {"driver": driver_version(), "python": platform.python_version(), "torch": torch}
    return {**made_of, **gpus(), **versions, "kernel": platform.release(), "cores": os.cpu_count()}


def parsed() -> argparse.Namespace:
    alone = [name for name in STAGES if name != "multi"]
    parser = argparse.ArgumentParser(
        prog="tests/hardware/run.sh",
        description="Checks libodc on the GPUs of this machine, in stages of at most 8 minutes.",
        epilog=f"Stages: {', '.join(STAGES)}. STAGE:WORDS runs what has WORDS in its name.",
    )
    parser.add_argument("--multi", action="store_true", help="add what needs several GPUs")
    parser.add_argument("--short", action="store_true", help="sizes at which figures say nothing: to try the script")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"(default: {', '.join(alone)})")
    options = parser.parse_args()
    try:
        options.stages = [named(one) for one in options.stages or ([] if options.multi else alone)]
    except KeyError as error:
        parser.error(str(error.args[0]))
    if options.multi and ("multi", "") not in options.stages:
        options.stages.append(("multi", ""))
    return options


def until() -> float:
    """The time.monotonic() at which RUN_SECONDS have passed; infinity without it. Raises ValueError."""
    given = os.environ.get("RUN_SECONDS", "inf")
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"RUN_SECONDS is {given!r}; set it to the seconds that all stages have, as 560")
    return time.monotonic() + seconds


def main() -> int:
    options = parsed()
    try:
        end = until()
    except ValueError as error:
        print(f"tests/hardware/run.sh: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("tests/hardware/run.sh: ended by a signal"))
    print(f"kernel {platform.release()}", flush=True)  # before what may hang, as it tells a sandbox
    here = where()
    results = Path(os.environ["RESULTS"])
    if here["fake"] and os.environ.get("RESULTS_ARE_THE_PROJECTS") == "1":
        print("tests/hardware/run.sh: the driver is fake: set RESULTS to another folder", file=sys.stderr)
        return 2
    if not here["gpus"] and any(name != "environment" for name, _ in options.stages):
        print(f"tests/hardware/run.sh: no GPU can be used: {here['why_none']}", file=sys.stderr)
        return 2
    results.mkdir(parents=True, exist_ok=True)
    for file in [results / "run.log", *results.glob("running.*")]:
        file.unlink(missing_ok=True)
    here["short"] = options.short
    print(json.dumps(here), flush=True)
    done = []
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(len(here["gpus"]), here["fake"], options.short, Path(scratch))
        for name, words in options.stages:
            stage = Stage(name, words, results, here, at_once(name), end)
            done.append(stage)
            stage.run(chosen(name, setting, words))
    print(summary(done))
    return 1 if any(stage.count("failed") for stage in done) else 0


sys.exit(main())
