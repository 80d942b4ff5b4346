# SPDX-License-Identifier: Apache-2.0
"""The commands of each stage, with the limit of each and its reason."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner import Command, Figures, Finished, Reader, Result, cmocka, figures_as_json, junit, results_as_json

TREE = Path(__file__).resolve().parents[2]  # see pack.sh
HERE = TREE / "tests" / "hardware"
PACKAGE = TREE / "bindings" / "python"
MIB = 1 << 20

RANKS_BEGIN = "ranks wait 40 s for each other at most, and their test 180 s for them"
EACH_BEGINS_CUDA = "each of its tests starts ranks, which begin CUDA: some seconds"


@dataclass(frozen=True)
class Setting:
    """`short`: sizes at which figures mean nothing, to test the script. `scratch`: a folder for the commands' files."""

    gpus: int
    fake: bool
    short: bool
    scratch: Path

    def verdict(self, met: bool) -> str:
        if self.short or self.fake:
            return "not judged: a test run of the script"
        return "met" if met else "missed"


def tool(name: str) -> str:
    return str(TREE / "bin" / name)


def program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / name), *arguments]


def ranks(size: int, *command: str) -> list[str]:
    return [tool("odc"), "run", "-n", str(size), "--", *command]


def without(module: str) -> str:
    return "" if importlib.util.find_spec(module) else f"this python has no {module}"


def facilities(setting: Setting, name: str, *names: str) -> Command:
    limit = 60.0 * max(3, len(names))
    command = program("facilities.py", *(["--short"] if setting.short else []), *names)
    return Command(name, command, results_as_json, limit, "each is given up after 60 s")


# ---- facilities of the kernel and the driver ----


def as_figures(done: Finished) -> list[Result]:
    return figures_as_json(lambda _: {})(done)


def environment(setting: Setting) -> Iterator[Command]:
    yield facilities(setting, "facilities")
    for verb in ("info", "topo"):
        yield Command(f"odc {verb}", [tool("odc"), verb, "--json"], tidied, 60, "it may begin CUDA")


def tidied(done: Finished) -> list[Result]:
    """JSON of several lines on one."""
    output = " ".join(done.output.split("\n"))
    return as_figures(Finished(done.name, output, done.errors, done.problem, done.seconds))


# ---- the contract ----

# Tests hold streams. Of 8 hardware queues, the default, one may be shared with streams that would then wait for them.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def on_gpus(name: str, test: str, gpus: int = 1, **environment: str) -> Command:
    given = {"ODC_TEST_MEMORY": "gpu", "ODC_TEST_DEVICES": str(gpus), "ODC_TEST_TIME_SCALE": "2"}
    why = f"{EACH_BEGINS_CUDA}; {RANKS_BEGIN}"
    return Command(name, [tool(test)], cmocka, 240, why, {**QUEUES, **given, **environment})


def random_jobs(setting: Setting, name: str, size: int, gpus: int = 1, **environment: str) -> Command:
    seed = {"ODC_TEST_SEED": "7"} if setting.short else {}
    return on_gpus(f"random, {size} ranks{name}", "random_test", gpus, ODC_TEST_SIZE=str(size), **seed, **environment)


def contract(setting: Setting) -> Iterator[Command]:
    for turn in (1, 2):
        for size in (2, 4, 8):
            yield random_jobs(setting, f", {turn}", size)
    yield random_jobs(setting, ", staged", 4, ODC_TRANSPORTS="shm", ODC_STAGING_BYTES=str(MIB))
    yield random_jobs(setting, ", both kinds of memory", 4, ODC_TEST_MEMORY="mixed")
    for test in ("contexts", "streams", "input", "routes", "p2p_selftest"):
        yield on_gpus(f"gpu_{test}_test", f"gpu_{test}_test")
    for test in ("contexts", "streams"):
        yield on_gpus(f"gpu_{test}_test of threads", f"gpu_{test}_test", ODC_TEST_RANKS="threads")


def kill(setting: Setting) -> Iterator[Command]:
    yield facilities(setting, "mapping of the dead", "outlives", "killed_amid_copies")
    yield on_gpus("gpu_death_test", "gpu_death_test")


def growth(_: Setting) -> Iterator[Command]:
    yield on_gpus("1,000 minibatches", "gpu_faults_test")


# ---- compute-sanitizer ----

CHECKED_RANKS = 2
REFUSALS = ("Device not supported", "Internal Sanitizer Error", "LibraryNotLoaded", "Failed to initialize")


def sanitized(done: Finished) -> list[Result]:
    """Errors are reported for each process, so for each rank; a tool that cannot work here reports that instead."""
    said = done.output + done.errors
    for refusal in REFUSALS:
        if refusal in said:
            line = next(line for line in said.splitlines() if refusal in line)
            return done.skipped(f"compute-sanitizer does not work here: {line.strip()}")
    summaries = [line for line in said.splitlines() if "ERROR SUMMARY" in line]
    if len(summaries) < CHECKED_RANKS:
        return done.failed(f"memcheck followed {len(summaries)} processes; there were {CHECKED_RANKS} ranks")
    if done.problem or any("SUMMARY: 0 errors" not in line for line in summaries):
        return done.failed("compute-sanitizer found errors")
    return [Result(done.name, "passed", "", done.seconds, {"processes": len(summaries)})]


def sanitizer(setting: Setting) -> Iterator[Command]:
    missing = "" if shutil.which("compute-sanitizer") else "compute-sanitizer is not on the PATH"
    job = random_jobs(setting, "", CHECKED_RANKS)
    environment = {**job.environment, "ODC_TEST_SEED": "7", "ODC_TEST_TIME_SCALE": "6"}
    checked = ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no"]
    why = "memcheck makes kernels slower ten times and more, and begins in each rank"
    yield Command("memcheck", [*checked, tool("random_test")], sanitized, 400, why, environment, missing)


# ---- Python ----

PARTS = 3  # of the tests; parts run at the same time


def python(setting: Setting) -> Iterator[Command]:
    missing = without("pytest") or without("torch")
    files = [str(file) for file in sorted((PACKAGE / "tests").glob("*.py")) if "mark.cuda" in file.read_text()]
    parts = 1 if setting.short else PARTS
    # Without plugins that happen to be installed.
    # And CUDA must not be initialized in the process that forks ranks, so NVML counts the GPUs.
    alone = {**QUEUES, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    for part in range(parts):
        file, lines = (setting.scratch / f"pytest-{part}.{kind}" for kind in ("xml", "lines"))
        plugin = ["-p", "odc_split", "-p", "no:cacheprovider", f"--junitxml={file}", f"--rootdir={PACKAGE}"]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", *plugin, *files]
        yield Command(
            f"pytest, part {part + 1} of {parts}",
            command,
            junit(file, lines),
            460,
            "all that the stage has: each test starts ranks that begin CUDA, and trains",
            {**alone, "ODC_TEST_PART": f"{part}/{parts}", "ODC_TEST_LINES": str(lines)},
            missing,
        )


# ---- figures ----


def bar(setting: Setting, reached: float, words: str, met: bool) -> Figures:
    return {"reached": reached, "bar": words, "verdict": setting.verdict(met)}


def benched(setting: Setting, what: str) -> Reader:
    def bars(figures: Figures) -> Figures:
        if what == "host time":
            reached = figures["host_usec"]
            return {"host time of a call, µs": bar(setting, reached, "<= 30", reached <= 30)}
        if what == "reported":
            return {}
        return {what: bar(setting, figures["ratio"], ">= 0.95", figures["ratio"] >= 0.95)}

    return figures_as_json(bars)


def bench(setting: Setting, name: str, read: str, *arguments: str, ranks: int) -> Command:
    pairs = "11" if read == "reported" else "21" if arguments[0] == "scatter-add" else "31"
    few = ["--bytes", "64KiB", "--pairs", "3", "--sample-ms", "1"]
    size = few if setting.short else ["--bytes", "256MiB", "--pairs", pairs]
    if arguments[0] == "sync":
        size = []
    command = [tool("odc"), "bench", *arguments, "--memory", "cuda", "--ranks", str(ranks), *size, "--json"]
    why = "up to 31 rounds of up to five samples of 100 ms and more, after ranks have begun CUDA"
    return Command(name, command, benched(setting, read), 180, why)


TYPES = ("f32", "f64", "bf16", "f16")


def on_one_gpu(commands: Iterator[Command]) -> Iterator[Command]:
    """The first GPU that this process sees."""
    first = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    for command in commands:
        yield replace(command, environment={**command.environment, "CUDA_VISIBLE_DEVICES": first})


def bars(setting: Setting) -> Iterator[Command]:
    one = ("--active", "one")
    yield bench(setting, "gather 256 MiB", "of cuMemcpyAsync", "gather", *one, ranks=2)
    for kind in TYPES:
        name = f"scatter-add {kind} 256 MiB"
        yield bench(setting, name, "of the same kernel on own memory", "scatter-add", "--type", kind, *one, ranks=2)
    for kind in ("f32", "bf16"):
        name = f"exact scatter-add {kind} 256 MiB"
        exact = ("--type", kind, "--sum", "exact")
        yield bench(setting, name, "of the same kernel on own memory", "scatter-add", *exact, *one, ranks=2)
    for operation in ("gather", "scatter-add"):
        yield bench(setting, f"host time of {operation}, 8 peers", "host time", operation, *one, ranks=9)
    for size in (2, 8):
        for operation in ("gather", "scatter-add"):
            yield bench(setting, f"{operation}, {size} ranks at once", "reported", operation, ranks=size)
    yield bench(setting, "sync, 8 ranks", "reported", "sync", ranks=8)


def step(setting: Setting) -> Iterator[Command]:
    def bars(figures: Figures) -> Figures:
        slower = figures["slower"]
        return {"slower than equal local copies and additions": bar(setting, slower, "<= 0.03", slower <= 0.03)}

    script = str(PACKAGE / "bench" / "fsdp2_gpu.py")
    small = [
        "--device",
        "cpu",
        "--layers",
        "2",
        "--width",
        "32",
        "--tokens",
        "16",
        "--microbatches",
        "2",
        "--pairs",
        "3",
    ]
    command = ranks(2, sys.executable, "-W", "ignore", script, *(small if setting.short else []))
    yield Command(
        "FSDP2 step, rank 1 without microbatches",
        command,
        lambda done: figures_as_json(bars)(of_rank_0(done)),
        240,
        "31 pairs of samples of 100 ms and more; building two models and beginning CUDA takes as long",
        {},
        without("torch"),
    )


def of_rank_0(done: Finished) -> Finished:
    lines = [line.removeprefix("[0] ") for line in done.output.splitlines()]
    return Finished(done.name, "\n".join(lines), done.errors, done.problem, done.seconds)


# ---- the example ----


def trained(report: Path) -> Reader:
    def read(done: Finished) -> list[Result]:
        if done.problem:
            return done.failed()
        return tidied(Finished(done.name, (report / "summary.json").read_text(), "", "", done.seconds))

    return read


def training(setting: Setting, size: int, *options: str) -> Command:
    report = setting.scratch / f"example-{size}"
    given = ["--device", "cpu" if setting.short else "cuda", "--report", str(report), *options]
    few = ["--rounds", "1", "--turn", "1", "--minibatch", "2", "--data", str(PACKAGE / "libodc")]
    sizes = ["--width", "32", "--blocks", "1", *few] if setting.short else ["--rounds", "3"]
    script = str(PACKAGE / "examples" / "train" / "train.py")
    return Command(
        f"train.py compute, {size} ranks{' '.join(['', *options])}",
        ranks(size, sys.executable, "-W", "ignore", script, "compute", *given, *sizes),
        trained(report),
        200,
        "reading the text, then each arm trains some minibatches",
        {},
        without("torch") or without("matplotlib"),
    )


def example(setting: Setting) -> Iterator[Command]:
    for size in (2,) if setting.short else (2, 4):
        yield training(setting, size)


def bulk(_: Setting) -> Iterator[Command]:
    kernels = [TREE / "kernels" / name for name in ("add_sm90.ptx", "bulk.ptx")]
    missing = "" if kernels[1].exists() else "bulk.ptx was not packed: there was no nvcc"
    why = "15 pairs of samples of 100 ms for each type"
    yield Command("bulk additions", program("bulk.py", *map(str, kernels)), results_as_json, 120, why, {}, missing)


# ---- several GPUs ----


def nccl() -> str:
    """The wheel's, or its name if the loader finds it; empty: there is none."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for file in Path(folder).glob("nccl/lib/libnccl.so.2"):
            return str(file)
    return "libnccl.so.2" if ctypes.util.find_library("nccl") else ""


def multi(setting: Setting) -> Iterator[Command]:
    gpus = max(2, setting.gpus)
    missing = "" if setting.gpus > 1 else f"this machine has {setting.gpus} GPU"
    fill = TREE / "kernels" / "fill.ptx"
    commands = [
        facilities(setting, "pairs of GPUs", "pairs"),
        random_jobs(setting, f" on {gpus} GPUs", min(8, gpus), gpus),
        random_jobs(setting, f" on {gpus} GPUs, two each", min(8, 2 * gpus), gpus),
        random_jobs(setting, f" on {gpus} GPUs, staged", 4, gpus, ODC_TRANSPORTS="shm"),
        on_gpus("gpu_death_test on several GPUs", "gpu_death_test", gpus),
        of_other_gpus(),
        Command(
            "gather beside a kernel that fills every multiprocessor",
            ranks(2, *program("zero_sms.py", str(fill))),
            lambda done: results_as_json(of_rank_0(done)),
            90,
            "the kernel ends by itself after 20 s",
            missing="" if fill.exists() else "fill.ptx was not packed: there was no nvcc",
        ),
        *several_benches(setting, gpus),
        training(setting, gpus, *([] if setting.short else ["--compare", "nccl"])),
    ]
    for command in commands:
        yield replace(command, missing=command.missing or missing)


def of_other_gpus() -> Command:
    """Each rank sees a GPU that the other does not see."""
    script = 'CUDA_VISIBLE_DEVICES=$ODC_RANK exec "$0" topo --why'
    command = ranks(2, "sh", "-c", script, tool("odc"))
    given = {"ODC_DEVICE": "cuda:0"}

    def read(done: Finished) -> list[Result]:
        return done.failed() if done.problem else [Result(done.name, "passed", "", done.seconds, {"says": done.output})]

    return Command("ranks that see one GPU each", command, read, 60, "it may begin CUDA, and prints", given)


def several_benches(setting: Setting, gpus: int) -> Iterator[Command]:
    library = nccl()
    missing = "" if library else "there is no NCCL: neither the wheel nor for the loader"
    for operation in ("gather", "scatter-add"):
        for active in ("one", "all"):
            name = f"{operation} over {gpus} GPUs, {active} active"
            yield bench(setting, name, "reported", operation, "--active", active, ranks=gpus)
        compared = bench(setting, f"{operation} beside NCCL", "reported", operation, "--peer", "nccl", ranks=gpus)
        yield replace(compared, environment={"ODC_NCCL": library}, missing=missing)


STAGES: dict[str, Callable[[Setting], Iterator[Command]]] = {
    "environment": environment,
    "kill": kill,
    "growth": growth,
    "contract": contract,
    "sanitizer": sanitizer,
    "bulk": bulk,
    "bars": lambda setting: on_one_gpu(bars(setting)),
    "step": lambda setting: on_one_gpu(step(setting)),
    "python": python,
    "example": lambda setting: on_one_gpu(example(setting)),
    "multi": multi,
}


def at_once(name: str) -> int:
    """How many of the stage's commands run at the same time, where time is not measured."""
    return {"python": PARTS, "contract": 3}.get(name, 1)


def chosen(name: str, setting: Setting, words: str) -> Iterator[Command]:
    """The stage's commands whose names contain `words`."""
    for command in STAGES[name](setting):
        if words in command.name:
            yield command


def named(argument: str) -> tuple[str, str]:
    """For "contract:8 ranks" the stage, and the part of its commands' names. Raises KeyError."""
    name, _, words = argument.partition(":")
    if name not in STAGES:
        raise KeyError(f"there is no stage {name!r}; there are {', '.join(STAGES)}")
    return name, words


def summary(everything: list[Any]) -> str:
    counts = [sum(stage.count(outcome) for stage in everything) for outcome in ("passed", "failed", "skipped")]
    return "{} passed, {} failed, {} skipped".format(*counts)
