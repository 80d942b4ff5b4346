# SPDX-License-Identifier: Apache-2.0
"""`sessions.py SOURCES FOLDER` runs the shell sessions of the pages, their ```console blocks, in an empty folder with
the programs that the page prints, and compares: each line is there, in this order and with these words. Only where the
page has a line of … alone there may be others. Measured figures and names of this run are left out on both sides."""

import difflib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, field
from pathlib import Path

LINES = "…"
SECONDS = 120  # the limit of a command
# What is another in each run, and what stands for it. In this order.
OF_A_RUN = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "TIME"),
    (r"\bhost=\S+ pid=\d+", "PROCESS"),
    (r"\(host [^ ,]+, pid \d+\)", "(PROCESS)"),
    (r"\(pid \d+\)", "(PROCESS)"),
    (r"\b\d+(\.\d+)? (s|us)\b", "DURATION"),
    (r"\b\d+(\.\d+)? GB\b", "BYTES"),
    (r" +", " "),
    (r"(?<=DURATION DURATION) \d+$", " SYNCS"),  # in which a rank was the last
]
# Not run, and why.
NOT_RUN = {"gdb ": "what its frames are called depends on which debugging symbols are installed"}
# Run with these options, too, which make it shorter.
SHORTER = {
    r"\bodc bench [a-z-]+": "--bytes 64KiB --pairs 6 --sample-ms 1",
    r"\bodc replay": "--minibatches 1 --seconds 0.5",
}
# Shown of a machine that is recorded here.
RECORDED = {"odc topo ": "tests/data/topology/dual-socket.xml"}
# Ended when it has printed what the page shows: it would wait for minutes.
ENDED = "ODC_LOG=info odc run -n 2 python3 train.py hang"
# Which rank comes first or last, and which deadlines pass, depends on what else runs: repeated, at most so often, until
# it is as on the page.
TRIES = 3
MORE_TRIES = {"train.py slow 2>&1 | grep": 10, "ODC_RANK=2 python3 train.py": 5}


@dataclass
class Session:
    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def pattern(self) -> str:
        """Of what it prints, without figures."""
        lines = (r"(?:.*\n)*?" if line == LINES else re.escape(without_figures(line)) + r"\n" for line in self.shown)
        return "".join(lines)

    @property
    def fails(self) -> bool:
        """Whether the page shows that the command does."""
        return any(re.search(r"exited with status|^[\w.]*Error: ", line) for line in self.shown)


def without_figures(text: str) -> str:
    for what, name in OF_A_RUN:
        text = re.sub(what, name, text, flags=re.M)
    return text


def pages(sources: Path) -> list[Path]:
    globs = ("*.md", "docs/*.md", "bindings/*/*.md", "bindings/*/examples/**/*.md", "packaging/*.md")
    return sorted(page for glob in globs for page in sources.glob(glob))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Of each code block its language and its lines."""
    found = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", page.read_text(), re.S | re.M)
    return [(language, textwrap.dedent(block)) for _, language, block in found]


def sessions(page: Path) -> list[Session]:
    found: list[Session] = []
    for language, block in blocks(page):
        lines = block.splitlines()
        commands = [line for line in lines if line.startswith("$ ")]
        if (language == "console") != bool(commands) or (commands and lines[0] != commands[0]):
            raise SystemExit(f"{page}: a block of ```console, and no other, begins with '$ ' and a command: {block}")
        for line in lines if commands else []:
            if line.startswith("$ "):
                found.append(Session(line.removeprefix("$ ")))
            else:
                found[-1].shown.append(line)
    return found


def write_programs(page: Path, folder: Path) -> None:
    """Those whose first line is their name."""
    for language, code in blocks(page):
        if language == "python" and (named := re.match(r"# (\w+\.py)\n", code)):
            (folder / named[1]).write_text(code)


def end(process: subprocess.Popen[str], number: int) -> None:
    """The command with all that it has started."""
    os.killpg(process.pid, number)


def run(one: Session, command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Status, or 0 where it is ended, and what it printed. Returns when nobody has its output open any more."""
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    late = threading.Timer(SECONDS, end, (process, signal.SIGKILL))
    late.start()
    printed, is_ended = "", False
    assert process.stdout is not None
    for line in process.stdout:
        printed += line
        if one.command == ENDED and not is_ended and re.match(one.pattern, without_figures(printed)):
            is_ended = True
            end(process, signal.SIGTERM)
    status = process.wait()
    late.cancel()
    return 0 if is_ended else status, printed


def check(one: Session, sources: Path, folder: Path) -> str:
    """Returns what is wrong, or nothing."""
    job = f"sessions-{os.getpid()}"
    command = one.command.replace("ODC_JOB=example", f"ODC_JOB={job}")
    for verb, options in SHORTER.items():
        command = re.sub(verb, rf"\g<0> {options}", command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ODC_")}
    for words, machine in RECORDED.items():
        if one.command.startswith(words):
            environment["ODC_TOPOLOGY_XML"] = str(sources / machine)
    tries = next((tries for words, tries in MORE_TRIES.items() if words in one.command), TRIES)
    for _ in range(tries):
        status, printed = run(one, command, folder, environment)
        printed = printed.replace(job, "example")
        as_shown = (status != 0) == one.fails
        if as_shown and re.fullmatch(one.pattern, without_figures(printed)):
            return ""
    if not as_shown:
        return f"it ended with status {status}: {printed}"
    both = (without_figures(text).splitlines() for text in ("\n".join(one.shown), printed))
    return "\n".join(difflib.unified_diff(*both, "the page", "printed", lineterm=""))


def main() -> int:
    sources, folder = Path(sys.argv[1]), Path(sys.argv[2])
    failures, ran, left_out = [], 0, 0
    for page in pages(sources):
        name = page.relative_to(sources)
        write_programs(page, folder)
        for one in sessions(page):
            if why := next((why for words, why in NOT_RUN.items() if one.command.startswith(words)), None):
                print(f"{name}: {one.command}: not run: {why}")
                left_out += 1
                continue
            wrong = check(one, sources, folder)
            print(f"{name}: {one.command}: {'FAILED' if wrong else 'as shown'}", flush=True)
            failures += [f"{name}: {one.command}\n{wrong}"] if wrong else []
            ran += 1
    print(f"{ran} sessions run, {left_out} not run")
    if ran < 10:
        failures.append("too few sessions were found")
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
