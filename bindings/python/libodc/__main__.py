# SPDX-License-Identifier: Apache-2.0
"""python -m libodc demo: what ODC gains on given sequence lengths. It needs neither torch nor a GPU."""

import argparse
import difflib
import os
import signal
import subprocess
import sys
from pathlib import Path

from ._command import odc_command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m libodc", description="On-Demand Communication")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    demo = verbs.add_parser(
        "demo",
        help="what ODC gains on given sequence lengths, in less than a minute",
        description="Replays sequence lengths with the collective schedule and with ODC: real communication between "
        "processes, compute emulated by sleeping. Prints a table and a verdict and draws both schedules. Other options "
        "are those of odc replay.",
        allow_abbrev=False,  # or a misspelt option of odc replay would be taken for one of these
    )
    lengths = "one sequence length per line; default: the sizes of 796 source files"
    demo.add_argument("--lengths", metavar="FILE", help=lengths)
    demo.add_argument("--picture", default="odc-demo.svg", metavar="FILE", help="SVG; default: %(default)s")
    demo.add_argument("--seconds", default="20", metavar="N", help="of all schedules together; default: %(default)s")
    options, others = parser.parse_known_args()
    for word in filter(lambda one: one.startswith("--"), others):
        if near := difflib.get_close_matches(word.partition("=")[0], ("--lengths", "--picture", "--seconds"), 1, 0.8):
            demo.error(f"there is no option {word}; did you mean {near[0]}?")
        if word.partition("=")[0] == "--timeline":
            demo.error("the picture is that of --timeline; give its file by --picture")
    if options.verb is None:
        if others:
            parser.error(f"unknown: {' '.join(others)}")
        parser.print_help()
        return 0
    if not options.picture:
        demo.error("--picture is empty; give it a file")
    if options.lengths is not None and _is_one_file(options.picture, options.lengths):
        demo.error(f"--picture and --lengths are one file, {options.lengths}; give each its own")
    command = odc_command()
    if command is None:
        print("odc: the odc command was not found (Debian, RPM: odc-tools; it is a part of the wheel)", file=sys.stderr)
        return 1
    own = ["--seconds", options.seconds, "--timeline", options.picture]
    if options.lengths is not None:
        own += ["--lengths", options.lengths]
    status = _ended([command, "replay", *own, *others])
    if status == 0:
        told = sys.stderr if "--json" in others else sys.stdout
        try:
            print(f"picture: {Path(options.picture).resolve()}", file=told, flush=True)
        except BrokenPipeError:  # as odc replay: whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), told.fileno())
    return status if status >= 0 else 128 - status


def _is_one_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def _ended(command: list[str]) -> int:
    """The status of a command, which shares the open files of this process and gets its signals."""
    with subprocess.Popen(command, close_fds=False) as running:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: running.send_signal(number))
        return running.wait()


if __name__ == "__main__":
    sys.exit(main())
