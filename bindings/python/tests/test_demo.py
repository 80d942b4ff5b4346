# SPDX-License-Identifier: Apache-2.0
"""python -m libodc demo, for a second."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.dom import minidom

import pytest

from libodc._command import odc_command


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libodc", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("own", [False, True])
def test_the_demo_prints_a_table_and_a_verdict_and_draws(tmp_path: Path, own: bool) -> None:
    (tmp_path / "lengths.txt").write_text("".join(f"{length}\n" for length in (10, 200, 3000, 40000, 7, 80)))
    lengths = ["--lengths", "lengths.txt"] if own else []
    ended = demo(tmp_path, "demo", *lengths, "--ranks", "2", "--minibatches", "2", "--seconds", "1")
    assert ended.returncode == 0, ended.stderr
    assert f"{6 if own else 796} lengths" in ended.stdout
    assert len(re.findall(r"^(?:collective|odc) \+ .*%$", ended.stdout, re.M)) == 6
    *_, verdict, picture = ended.stdout.splitlines()
    assert re.match("verdict: not resolved: (?:3 pairs are the least|other programs used)", verdict)
    assert picture == f"picture: {(tmp_path / 'odc-demo.svg').resolve()}"
    minidom.parse(str(tmp_path / "odc-demo.svg"))


def test_wrong_lengths_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("10\nten\n")
    ended = demo(tmp_path, "demo", "--lengths", "lengths.txt")
    assert ended.returncode == 2 and 'lengths.txt:2: "ten" is not a positive whole number' in ended.stderr
    assert "picture" not in ended.stdout


def test_a_misspelt_option_of_its_own_is_not_taken_for_one_of_replay(tmp_path: Path) -> None:
    ended = demo(tmp_path, "demo", "--pictur", "mine.svg", "--ranks", "2")
    assert ended.returncode == 2 and "demo: error: there is no option --pictur; did you mean --picture?" in ended.stderr


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_picture_does_not_overwrite_the_lengths(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("10\n20\n")
    link(lengths, tmp_path / "picture.svg")
    ended = demo(tmp_path, "demo", "--lengths", "lengths.txt", "--picture", "picture.svg")
    assert ended.returncode == 2 and "--picture and --lengths are one file, lengths.txt" in ended.stderr
    assert lengths.read_text() == "10\n20\n"


def test_the_lengths_may_be_an_open_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("10\n20\n")
    with (tmp_path / "lengths.txt").open() as file:
        command = [sys.executable, "-m", "libodc", "demo", "--lengths", f"/dev/fd/{file.fileno()}", "--ranks", "1"]
        command += ["--minibatches", "1", "--seconds", "1"]
        fds = [file.fileno()]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, pass_fds=fds)
    assert ended.returncode == 0 and "2 lengths" in ended.stdout, ended.stderr


def test_a_picture_needs_a_name_and_is_given_by_one_option(tmp_path: Path) -> None:
    ended = demo(tmp_path, "demo", "--picture", "")
    assert ended.returncode == 2 and "--picture is empty; give it a file" in ended.stderr
    ended = demo(tmp_path, "demo", "--timeline=x.svg")
    assert ended.returncode == 2 and "give its file by --picture" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "libodc", "demo", "--ranks", "2", "--seconds", "100"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as running:
        parent = running.pid
        for _ in range(2):  # until odc replay has started ranks
            children = Path(f"/proc/{parent}/task/{parent}/children")
            while not (started := children.read_text().split()):
                assert running.poll() is None
                time.sleep(0.01)
            parent = int(started[0])
        running.send_signal(number)
        _, told = running.communicate(timeout=100)
    assert running.returncode == 128 + number and "Traceback" not in told, told


def test_json_is_alone_on_standard_output(tmp_path: Path) -> None:
    ended = demo(tmp_path, "demo", "--ranks", "2", "--minibatch", "2", "--minibatches", "1", "--seconds", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "verdict" in json.loads(ended.stdout)
    assert f"picture: {(tmp_path / 'odc-demo.svg').resolve()}\n" in ended.stderr


def test_a_picture_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    ended = demo(tmp_path, "demo", "--picture", "missing/x.svg", "--seconds", "1000000")
    assert ended.returncode == 1
    assert ended.stderr == "odc: missing/x.svg cannot be written: No such file or directory\n"


@pytest.mark.parametrize("words", [["lengths", "--help"], ["lengths", "-h"], ["--help"], ["-h"]])
def test_the_scripts_help_installs_nothing(tmp_path: Path, words: list[str]) -> None:
    script = os.path.relpath(Path(__file__).parents[3] / "tools" / "demo.sh", tmp_path)
    (tmp_path / "bash").write_text("#!/bin/sh\necho an installation begins\nexit 1\n")
    (tmp_path / "bash").chmod(0o755)
    ended = subprocess.run(
        ["/bin/bash", script, *words],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    options = re.findall(r"^  (--\w+) [A-Z]", demo(tmp_path, "demo", "--help").stdout, re.M)
    assert len(options) == 3 and all(f"{option} " in ended.stdout for option in options), (options, ended.stdout)


def test_without_a_verb_it_prints_its_help(tmp_path: Path) -> None:
    ended = demo(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "") and "demo" in ended.stdout and "usage" in ended.stdout
    assert demo(tmp_path, "--nonsense").returncode == 2


def test_the_command_is_the_wheels_own() -> None:
    command = odc_command()
    assert command is not None and Path(command).parts[-3:] == ("libodc", "bin", "odc")
    script = Path(sys.executable).with_name("odc")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
