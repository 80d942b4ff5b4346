# SPDX-License-Identifier: Apache-2.0
"""The training example from its command line to its report."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import terminal

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
import training  # noqa: F401 -- so that forked ranks have it
from corpus import InputError
from dataset import load_dataset
from gpus import check_own_gpus, choose_device
from neighbour import check_cores
from options import parse_options
from scripts import Script, end_all

import libodc

SCRIPT = Path(__file__).parents[1] / "examples" / "train" / "train.py"
ARMS = ["fsdp2 + lb-micro", "collective + lb-micro", "collective + sorted-rows", "odc + lb-micro", "odc + lb-mini"]
STEPS = ["transport", "plan of collectives", "schedule", "transport, schedule", "plan", "schedule, plan", "all"]
LINE = (
    r"step \d+/\d+(  \d+:\d\d left)?  loss \d\.\d{4}  (warming up |idle \d+ % \d+ % )?"
    r"\((fsdp2|collective|odc) \+ (lb-micro|lb-mini|sorted-rows)\)"
)
HEAD = (SCRIPT.read_text().split('"""')[1]).replace("\n    ", "\n")
ROWS = re.compile(r"^(?:arm |(?:fsdp2|collective|odc) \+ |gain of|(?!verdict)[a-z, ]+: [a-z]+ \+ ).*$", re.M)
SMALL = ["--minibatch", "3", "--width", "32", "--blocks", "2", "--length-scale", "8"]


def run(tmp_path: Path, *arguments: str, own: Sequence[Sequence[str]] = ((), ())) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of each of two ranks; `own`: further arguments of each."""
    name = f"train-{os.getpid()}-{tmp_path.name}"
    ranks = []
    for rank in range(2):
        environment = os.environ | {"ODC_RANK": str(rank), "ODC_SIZE": "2", "ODC_JOB": name}
        command = [sys.executable, str(SCRIPT), *arguments, *own[rank]]
        ranks.append(
            subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    ended = []
    for one in ranks:
        try:
            out, err = one.communicate(timeout=400)
        finally:
            one.kill()
        ended.append((one.returncode, out, err))
    return ended


def forked(
    tmp_path: Path, *arguments: str, own: Sequence[Sequence[str]] = ((), ()), seconds: float = 120
) -> list[tuple[int, str, str]]:
    """The same by ranks that have torch already."""
    joining = {"ODC_SIZE": "2", "ODC_JOB": f"train-{os.getpid()}-{tmp_path.name}"}
    ranks = [
        Script([str(SCRIPT), *arguments, *own[rank]], os.environ | joining | {"ODC_RANK": str(rank)}, tmp_path)
        for rank in range(2)
    ]
    return end_all(ranks, seconds)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A long tail: 40 texts of 20 to some 6000 bytes."""
    directory = tmp_path / "corpus"
    directory.mkdir()
    for number in range(40):
        (directory / f"{number:02}.txt").write_text("To be, or not to be. " * (1 + number**4 // 9000))
    (directory / "empty.txt").touch()
    return directory


def shape(lines: Sequence[str]) -> list[str]:
    """Any figure for any other."""
    return [re.sub(r"[0-9.]+", "0", " ".join(line.split())) for line in lines]


def check_report(
    tmp_path: Path, experiment: str, pictures: Sequence[str] = ("gains", "idle", "losses", "timeline")
) -> dict[str, Any]:
    directory = tmp_path / "report" / experiment
    pictures = [f"{name}.png" for name in pictures]
    assert {path.name for path in directory.iterdir()} == {*pictures, "summary.json", "index.html"}
    page = (directory / "index.html").read_text()
    assert sorted(re.findall(r'<img src="([^"]*)"', page)) == pictures
    for picture in pictures:
        assert (directory / picture).read_bytes().startswith(b"\x89PNG")
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    assert summary["data"]["findings"] == {"empty, left out": 1}
    assert summary["data"]["samples"] == 40 - summary["ranks"] and summary["data"]["held_out"] == summary["ranks"]
    assert 0 <= summary["largest_loss_difference"] <= 1e-5
    assert summary["verdict"].startswith("verdict: ") and 0 <= summary["others_cpu_share"] <= 1
    assert summary["verdict"] in unescape(page)
    assert summary["processor"] and summary["date"] and len(summary["load_average"]) == 3
    return summary


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_two_hosts(tmp_path: Path, corpus: Path, ranks: int) -> None:
    """With two ranks a host the node cache has something to save."""
    hosts = Path(__file__).parents[3] / "tests/harness/hosts.sh"
    train = [sys.executable, str(SCRIPT), "compute", "--data", str(corpus), "--rounds", "1", "--turn", "2", *SMALL]
    inside = ["bash", "-c", f'"$HOSTS" ranks {ranks} "$@"', "train", *train]
    ended = subprocess.run(
        ["bash", str(hosts), "2", "--", *inside], cwd=tmp_path, capture_output=True, text=True, timeout=170
    )
    if ended.returncode == 77:
        pytest.skip(ended.stderr.strip())
    assert ended.returncode == 0, ended.stderr
    arms = {arm["name"]: arm for arm in check_report(tmp_path, "compute")["arms"]}
    flat = "odc + lb-mini, no node cache"
    assert list(arms) == [*ARMS[:-1], *([flat] if ranks == 4 else []), ARMS[-1]]
    for name, arm in arms.items():
        counted = arm["bytes_counted"]
        assert (counted is None) == (not name.startswith("odc"))
        assert arm["bytes_into_a_host"] > (counted or 0)  # headers, too
        assert re.search(rf"^{re.escape(name)} +\d+\.\d +[-\d.]+$", ended.stdout, re.M), name
    if ranks == 4:
        for count in ("bytes_counted", "bytes_into_a_host"):
            assert arms[flat][count] > 1.5 * arms["odc + lb-mini"][count]


def test_real_compute(tmp_path: Path, corpus: Path) -> None:
    (status, out, err), (other_status, other_out, _) = run(
        tmp_path, "compute", "--data", str(corpus), "--rounds", "3", "--turn", "2", "--rate", "0.01", *SMALL
    )
    assert (status, other_status, other_out) == (0, 0, ""), err
    assert "1 empty, left out: empty.txt" in out
    steps = [line for line in err.splitlines() if line.startswith("step ")]
    assert steps and all(re.fullmatch(LINE, line) for line in steps), steps
    wanted = shape(ROWS.findall(HEAD))
    if "verdict: not resolved" in out:
        wanted = [row.replace("0x", "-") for row in wanted if " over " not in row and "gain of" not in row]
    assert shape(ROWS.findall(out)) == wanted
    assert "losses of the arms differ by" in out
    summary = check_report(tmp_path, "compute")
    assert [arm["name"] for arm in summary["arms"]] == ARMS
    assert [gain["of"] for gain in summary["gains"]] == STEPS
    assert all(len(gain["ratios"]) == 3 and min(gain["ratios"]) > 0 for gain in summary["gains"])
    for arm in summary["arms"]:
        assert 0 < arm["reached"] == arm["ideal_seconds"] / arm["seconds"] < 1
        assert len(arm["losses"]) == 7 and len(arm["rank_idle"]) == 2
        before, after = arm["held_out_losses"]
        assert after < before
        assert arm["name"] in out


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_real_compute_with_a_slow_rank(tmp_path: Path, corpus: Path) -> None:
    settings = ["--data", str(corpus), "--rounds", "3", "--turn", "2", "--rate", "0.01", *SMALL]
    (status, out, err), (other_status, _, _) = forked(tmp_path, "compute", "--slow", "1", *settings, seconds=400)
    assert (status, other_status) == (0, 0), err
    assert "rank 1 shares its core with a busy process" in out
    summary = check_report(tmp_path, "compute")
    assert [arm["name"] for arm in summary["arms"]] == [*ARMS, "odc + claims"]
    steps = [*STEPS[:-1], "speeds, claims", "schedule, speeds, claims", "all"]
    assert [gain["of"] for gain in summary["gains"]] == steps
    assert summary["gains"][-1]["over"] == "odc + claims" and summary["settings"]["slow"] == 1


def test_a_slow_rank_that_cannot_be(tmp_path: Path, corpus: Path) -> None:
    (status, _, err), _ = forked(tmp_path, "compute", "--slow", "2", "--data", str(corpus), *SMALL)
    assert status == 2 and "train.py: --slow 2 is not a rank of this job, which has 2" in err
    with pytest.raises(InputError, match=r"--slow needs a core for each of the 4096 ranks, and this host gives"):
        check_cores(0, 4096)


def test_emulated_devices(tmp_path: Path, corpus: Path) -> None:
    lengths = tmp_path / "lengths"
    lengths.write_text("".join(f"{50 + 400 * (i % 7 == 0)}\n" for i in range(38)))
    arguments = ["--data", str(corpus), "--lengths", str(lengths), "--minibatches", "2", "--seconds", "2", *SMALL]
    (status, out, err), _ = forked(tmp_path, "emulated", *arguments)
    assert status == 0, err
    assert out.splitlines()[0] == "EMULATED DEVICES: compute padded by sleep; not a GPU measurement"
    summary = check_report(tmp_path, "emulated")
    assert summary["experiment"] == out.splitlines()[0]
    assert [part["samples_per_rank"] for part in summary["parts"]] == [3, 1]
    for part in summary["parts"]:
        assert [arm["name"] for arm in part["arms"]] == ARMS[1:]
        of = ["plan of collectives", "schedule", "plan", "schedule, plan", "schedule, plan"]
        assert [gain["of"] for gain in part["gains"]] == of
        assert [gain["under"] for gain in part["gains"][3:]] == ["collective + sorted-rows", ARMS[1]]
        assert part["overruns"]["spans"] > 0
        assert all(0 < arm["reached"] == arm["ideal_seconds"] / arm["seconds"] < 1 for arm in part["arms"])


def test_compute_that_is_longer_than_its_spans_is_no_result(tmp_path: Path, corpus: Path) -> None:
    arguments = ["--data", str(corpus), "--minibatches", "1", "--seconds", "0.001", *SMALL]
    (status, out, err), (other_status, _, _) = forked(tmp_path, "emulated", *arguments)
    assert (status, other_status) == (0, 0), err
    verdict = next(line for line in out.splitlines() if line.startswith("verdict"))
    assert verdict.startswith("verdict: not resolved: with 3 samples a rank real compute was longer than 100.00%")
    assert verdict.endswith(", 3 pairs of turns are the least")
    rows = re.findall(r"^(?:collective|odc) \+ .*$", out, re.M)
    assert len(rows) == 8 and all(re.search(r" \d+ +- +[\d.]+% ", row) for row in rows), out
    assert "gain of" not in out and "x" not in "".join(rows)
    summary = check_report(tmp_path, "emulated")
    assert summary["verdict"] == verdict
    for gain in (gain for part in summary["parts"] for gain in part["gains"]):
        assert gain["resolved"] is False and verdict == f"verdict: not resolved: {gain['why_not_resolved']}"
    overruns = summary["parts"][0]["overruns"]
    assert overruns["longer"] == overruns["spans"] > 0


def alone(**others: str) -> dict[str, str]:
    """An environment without a launcher."""
    launchers = re.compile(r"(?:.*_)?(?:RANK|WORLD_SIZE|LOCALNRANKS|PROCID|STEP_ID)|MASTER_.*|ODC_.*|PMI_.*")
    return {name: value for name, value in os.environ.items() if not launchers.fullmatch(name)} | others


def test_a_rank_without_a_launcher_shows_its_progress_in_place(tmp_path: Path, corpus: Path) -> None:
    command = [sys.executable, str(SCRIPT), "compute", "--data", str(corpus), "--rounds", "2", "--turn", "1", *SMALL]
    status, out, shown = terminal.run(command, env=alone(), cwd=tmp_path)
    lines = shown.decode().split("\r\x1b[K")
    assert status == 0, lines
    assert out.startswith(b"real compute: 1 rank of one thread")
    summary = json.loads((tmp_path / "report/compute/summary.json").read_text())
    steps = 5 * (3 + summary["pairs_repeated"])  # arms, minibatches
    assert len(lines) == 1 + steps + 1 and lines[-1] == "", lines  # at the end an empty one
    assert re.fullmatch(rf"step {steps}/{steps}  0:00 left  loss \d\.\d{{4}}  idle \d+ % \(.*\)", lines[-2]), lines
    assert summary["ranks"] == 1


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"RANK": "0"}, "no launcher is found .* (RANK is set, but not rank and size)"),
        ({"ODC_JOB": "mine"}, "no launcher is found .* (ODC_JOB is set, but not rank and size)"),
        ({"ODC_RANK": "0"}, "ODC_RANK is set but ODC_SIZE is not"),
        ({"ODC_RANK": "2", "ODC_SIZE": "2"}, "ODC_RANK"),
    ],
)
def test_what_is_wrong_with_the_environment_is_told(environment: dict[str, str], text: str, tmp_path: Path) -> None:
    [(status, _, err)] = end_all([Script([str(SCRIPT), "compute"], alone(**environment), tmp_path)], 120)
    assert status == 2, err
    wanted = re.escape(text).replace(re.escape(" .* "), " .* ")
    assert re.search(f"^train.py: .*{wanted}", err, re.M) and "Traceback" not in err, err


def test_bad_input_ends_the_run(tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"text": "good"}\n{"prompt": "x"}\n')
    ended = forked(tmp_path, "compute", "--data", str(data))
    assert [status for status, _, _ in ended] == [2, 2]
    wanted = f'train.py: {data}:2: must be an object with either "text" or "messages"'
    assert [line for line in ended[0][2].splitlines() if "train.py:" in line] == [wanted]
    assert ended[1][2] == "" and "odc error" not in ended[0][2]
    assert "Traceback" not in ended[0][2]
    assert not (tmp_path / "report").exists()


def test_bad_input_of_one_rank(tmp_path: Path, corpus: Path) -> None:
    none = tmp_path / "none"
    ended = forked(tmp_path, "compute", own=[["--data", str(corpus)], ["--data", str(none)]])
    assert [status for status, _, _ in ended] == [2, 2]
    assert ended[0][2] == ""
    assert ended[1][2] == f"train.py: {none} does not exist; give a directory of text files or a .jsonl file\n"


def test_wrong_options_are_told_once(tmp_path: Path) -> None:
    (status, _, err), (other_status, _, other_err) = run(tmp_path, "compute", "--turns", "3")
    assert (status, other_status, other_err) == (2, 2, "")
    assert "did you mean --turn?" in err
    stray = alone(RANK="1")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "computed"], env=stray, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 2 and "did you mean compute?" in ended.stderr, "a stray RANK makes it silent"


def test_bad_input_whose_words_c_would_cut_short(tmp_path: Path, corpus: Path) -> None:
    lengths = tmp_path / "lengths"
    lengths.write_bytes(b"7\na\0b\n")
    ended = forked(tmp_path, "emulated", "--data", str(corpus), "--lengths", str(lengths), *SMALL)
    assert [status for status, _, _ in ended] == [2, 2]
    assert f'train.py: {lengths}:2: "a\0b" is not a length of 1 to ' in ended[0][2]
    assert "Traceback" not in ended[0][2] + ended[1][2]


def test_too_little_text(corpus: Path) -> None:
    options = parse_options(["compute", "--data", str(corpus), *SMALL], "")
    dataset = load_dataset(options, 2)
    assert (len(dataset.training), len(dataset.held_out)) == (38, 2)
    with pytest.raises(InputError, match="40 samples are too few: 20 are held out, and a minibatch takes 60; lower"):
        load_dataset(options, 20)


def test_a_report_that_cannot_be_written(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "report").touch()
    ended = forked(tmp_path, "compute", "--data", str(corpus), *SMALL)
    assert [status for status, _, _ in ended] == [2, 2] and ended[1][2] == ""
    assert "train.py: --report report/compute cannot be made: Not a directory" in ended[0][2]


def test_ranks_that_read_different_text(tmp_path: Path, corpus: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in corpus.iterdir():
        (other / path.name).write_text(path.read_text().upper())
    ended = forked(tmp_path, "compute", "--minibatch", "3", own=[["--data", str(corpus)], ["--data", str(other)]])
    assert [status for status, _, _ in ended] == [2, 2]
    assert "rank 0 has read other samples than another rank" in ended[0][2]


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path: Path, corpus: Path) -> None:
    ended = forked(tmp_path, "compute", "--data", str(corpus), "--device", "cuda", *SMALL)
    assert [status for status, _, _ in ended] == [2, 2]
    assert "train.py: --device cuda: torch sees no GPU (nvidia-smi" in ended[0][2] and "Traceback" not in ended[0][2]


def test_comparing_with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    with libodc.init(rank=0, size=1, job=f"nccl-{os.getpid()}") as context:
        with pytest.raises(InputError, match="--compare nccl compares GPUs: give --device cuda, too"):
            choose_device(parse_options(["compute", "--compare", "nccl"], ""), context)
    gpus = ["a", "b", "c"]

    def all_gather_object(everyone: list[str], mine: str) -> None:
        everyone[:] = gpus

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="c"))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: len(gpus))
    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    check_own_gpus(torch.device("cuda", 0))
    gpus.append("b")
    with pytest.raises(InputError, match="ranks 1 and 3 share a GPU, and NCCL needs one for each rank"):
        check_own_gpus(torch.device("cuda", 0))


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU, and a torch that uses it")
def test_gpus(tmp_path: Path, corpus: Path) -> None:
    arguments = ["--data", str(corpus), "--device", "cuda", "--rounds", "2", *SMALL]
    (status, out, err), (other_status, _, _) = run(tmp_path, "compute", *arguments)
    assert (status, other_status) == (0, 0), err
    summary = check_report(tmp_path, "compute", ("gains", "losses"))
    assert [arm["name"] for arm in summary["arms"]] == ARMS[1:]
    assert [gain["of"] for gain in summary["gains"]] == [*STEPS[1:3], *STEPS[4:6], "schedule, plan"]
    if torch.cuda.device_count() > 1:
        (status, _, err), _ = run(tmp_path, "compute", *arguments, "--compare", "nccl")
        assert status == 0, err
        summary = check_report(tmp_path, "compute", ("gains", "losses"))
        assert [arm["name"] for arm in summary["arms"]] == ARMS
    else:
        (status, _, err), _ = run(tmp_path, "compute", *arguments, "--compare", "nccl")
        assert status == 2 and "ranks 0 and 1 share a GPU" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["compute", "--turn", "0"], '"0" is not a whole number of at least 1'),
        (["emulated", "--seconds", "nan"], '"nan" is not a positive number'),
        (["compute", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["emulated", "--device", "cuda"], "unknown: --device cuda (see 'train.py emulated --help')"),
        (["compute", "--turns=3"], "unknown: --turns=3; did you mean --turn? (see 'train.py compute --help')"),
        (["order", "--lookahead", "3"], "argument --lookahead: 3 does not divide the 16 minibatches of a window"),
        (["compute", "--width", "40"], "40 is not a multiple of 32"),
        (["dpo"], "there is no experiment 'dpo' (choose from compute, emulated, order, exact)"),
        (["emulate"], "there is no experiment 'emulate'; did you mean emulated? (choose from"),
        ([], "the following arguments are required: experiment"),
    ],
)
def test_options_that_are_refused(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(arguments, "")
    assert text in capsys.readouterr().err


def test_messages_are_whole_by_default(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q" * 300}, {"role": "assistant", "content": "a" * 20}]
    data = tmp_path / "chat.jsonl"
    data.write_text(f"{json.dumps({'messages': messages})}\n" * 60)
    dataset = load_dataset(parse_options(["compute", "--data", str(data)], ""), 2)
    assert dataset.scale == 1 and len(dataset.training) + len(dataset.held_out) == 60
    assert load_dataset(parse_options(["compute"], ""), 2).scale == 32
    with pytest.raises(
        InputError, match="60 of 60 documents have nothing to learn in their first 1/32: lower --length"
    ):
        load_dataset(parse_options(["compute", "--data", str(data), "--length-scale", "32"], ""), 2)


def test_help_does_not_wait_for_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('imported')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "compute", "--help"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "--length-scale" in ended.stdout, ended.stderr
