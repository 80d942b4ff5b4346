# SPDX-License-Identifier: Apache-2.0
"""The example of reinforcement learning: its parts, and its arms side by side, on one, two and three ranks."""

import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
import load
import policy
import sorting
import ways
from decoder import Decoder, Packed
from devices import cost_of, device_of, speed_of
from emulation import Overruns
from generate import answers
from learner import Group, Learner, Record, Totals
from outcome import Outcome, difference
from scripts import run_forked
from settings import ARMS, parse_settings
from stopwatch import Span
from update import Update, sentence, update_of, update_table

import libodc
from libodc._command import odc_command

SCRIPT = Path(__file__).parents[1] / "examples" / "grpo" / "grpo.py"
SMALL = ["--width", "32", "--blocks", "1", "--answers", "4", "--held-out", "5"]


Ended = tuple[subprocess.CompletedProcess[str], dict[str, Any]]


def words_of(report: Path, *arguments: str) -> list[str]:
    return [str(SCRIPT), *SMALL, "--report", str(report), *arguments]


def with_summary(ended: subprocess.CompletedProcess[str], report: Path) -> Ended:
    summary = report / "summary.json"
    return ended, json.loads(summary.read_text()) if summary.exists() else {}


def run(folder: Path, ranks: int, *arguments: str) -> Ended:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ODC_")}
    report = folder / f"report {ranks}"
    words = [str(odc_command()), "run", "-n", str(ranks), sys.executable, *words_of(report, *arguments)]
    ended = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    return with_summary(ended, report)


def forked(folder: Path, ranks: int, *arguments: str) -> Ended:
    """The same without the launcher."""
    report = folder / f"report {ranks}"
    return with_summary(run_forked(ranks, words_of(report, *arguments), folder, 300), report)


def assert_same_first_update(arms: dict[str, Any], name: str) -> None:
    """Of an arm that rounds otherwise, so that later a token may be drawn otherwise."""
    after = {one: arms[one]["divergences"][1] for one in (name, "odc-equal")}
    assert after[name] == pytest.approx(after["odc-equal"], rel=1e-4) and after[name] > 0


def test_the_arms_have_the_same_rewards_on_any_number_of_ranks(tmp_path: Path) -> None:
    options = ["--rollouts", "3", "--prompts", "6", "--minibatch", "2", "--warm-up", "60", "--refresh", "2"]
    ended, summary = run(tmp_path, 2, *options)
    assert ended.returncode == 0, ended.stderr
    arms = summary["arms"]
    assert tuple(arms) == tuple(name for name in ARMS if not name.startswith("collective") and name != "odc-ahead")
    assert "the same rewards and parameters, bit by bit, in odc-equal, odc-free, odc-claims" in ended.stdout
    assert "ran between the first forward" not in ended.stderr  # no collective within an ODC arm's minibatch
    assert re.search(r"^\[0\] rollout 1/18  reward \d\.\d{3}  \(fsdp2-equal\)$", ended.stderr, re.M)
    results = [arms[name] for name in ("odc-equal", "odc-free", "odc-claims")]
    for ranks in (1, 3):
        other_ended, other = forked(tmp_path, ranks, *options, "--arms", "odc-free")
        assert other_ended.returncode == 0, other_ended.stderr
        results.append(other["arms"]["odc-free"])
        if ranks == 1:
            assert results[-1]["answers_waited_seconds"] == results[-1]["parameters_waited_seconds"] == 0
    assert len({(*one["rewards"], one["parameters"], one["rollout_steps"]) for one in results}) == 1

    for name, arm in arms.items():
        assert arm["groups"] == 18 and 0 < arm["kept_groups"] <= 18
        # Before the first step of a rollout the policy is the one that answered; several answers of a pass round
        # otherwise than one.
        assert arm["most_ratio_off"] <= (1e-5 if name.endswith("packed") else 0)
        assert all(value >= 0 for value in arm["divergences"]) and arm["divergences"][1] > 0
        trained = [sum(ranks) for ranks in zip(*arm["answers_by_rank"], strict=True)]
        assert sum(trained) == 4 * arm["kept_groups"]
        assert name.startswith("fsdp2") or arm["passes_over_nothing"] == 0
        assert arm["parameters"] in ended.stdout
        assert arm["answers_waited_seconds"] > 0 and arm["parameters_waited_seconds"] >= 0
        assert arm["rollout_steps"] <= arm["rollout_steps_in_lock_step"]
    for other in ("fsdp2-equal", "fsdp2-packed", "odc-packed"):
        assert_same_first_update(arms, other)
    same = [a == b for a, b in zip(arms["fsdp2-equal"]["rewards"], arms["odc-equal"]["rewards"], strict=True)]
    alike = f"fsdp2-equal has the ODC arms' rewards in the first {[*same, False].index(False)} of 3 rollouts"
    assert alike in ended.stdout
    for equal in ("fsdp2-equal", "odc-equal"):
        # LB-Micro's counts differ by one at most in each of a rollout's minibatches.
        assert all(abs(a - b) <= 3 for a, b in zip(*arms[equal]["answers_by_rank"], strict=True))
    report = tmp_path / "report 2"
    pictures = ["phases.png", "rewards.png", "timeline.png"]
    assert {path.name for path in report.iterdir()} == {*pictures, "summary.json", "index.html"}
    page = (report / "index.html").read_text()
    assert sorted(re.findall(r'<img src="([^"]*)"', page)) == pictures
    assert "The reward by rollout: the same bits in odc-equal, odc-free, odc-claims." in page
    # The first rollout is the warmed-up policy's. After the second the reference becomes the policy, which has then
    # left it for one rollout in the third, as in the first, and not for three.
    assert len({arm["rewards"][0] for arm in arms.values()}) == 1
    for name, arm in arms.items():
        assert arm["divergences"][2] < arm["divergences"][1], name
    assert all((report / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_the_reward_rises(tmp_path: Path) -> None:
    """Of held-out prompts. Exact and seeded, so a run differs from another on other processors only."""
    options = ["--width", "64", "--rollouts", "12", "--prompts", "32", "--answers", "8", "--held-out", "32"]
    options += ["--minibatch", "8", "--warm-up", "20", "--rate", "1e-3", "--arms", "odc-free"]
    ended, summary = forked(tmp_path, 2, *options)
    assert ended.returncode == 0, ended.stderr
    before, after = summary["arms"]["odc-free"]["held_out_rewards"]
    assert after > before + 0.05  # 0.12 on an AMD EPYC
    assert f"reward of held-out prompts {before:.3f} -> {after:.3f} (odc-free)" in ended.stdout


def test_updates_on_emulated_devices(tmp_path: Path) -> None:
    """Their ideal is that of the plan of each arm, by the cost model; the machine may be too busy to reach it."""
    options = ["--rollouts", "2", "--prompts", "8", "--answers", "8", "--warm-up", "60"]
    options += ["--emulate", "0.1", "--noise", "0.3"]
    ended, summary = forked(tmp_path, 4, *options)
    assert ended.returncode == 0, ended.stderr
    arms = summary["arms"]
    assert tuple(arms) == (
        "collective-packed",
        "collective-equal",
        "odc-equal",
        "odc-free",
        "odc-ahead",
        "odc-claims",
    )
    assert "the same rewards and parameters, bit by bit, in odc-equal, odc-free, odc-claims" in ended.stdout
    for name, arm in arms.items():
        update = arm["update"]
        assert 0 < update["computed"] <= update["ideal_seconds"] <= update["seconds"], name
        assert update["overruns"]["spans"] > 0
        assert re.search(rf"^{name} .* {update['reached']:.1%} ", ended.stdout, re.M), name
        assert re.search(rf"^{name} .* s .*%  +-$", ended.stdout, re.M), "one pair of turns has no gain"
        assert update["resolved"] is False and update["why_not_resolved"].endswith("3 pairs of turns are the least")
    for name in ("collective-packed", "collective-equal"):
        assert_same_first_update(arms, name)
    assert "EMULATED DEVICES" in ended.stdout and (tmp_path / "report 4" / "updates.png").exists()
    ended, _ = forked(tmp_path, 1, "--emulate", "1", "--rollouts", "1")
    assert ended.returncode == 2 and "the first warms up, so two are the least" in ended.stderr


def test_the_ideal_of_updates() -> None:
    """Two ranks, three rollouts of which the first warms up; the second has two minibatches, the third a rank without
    answers."""

    def record(seconds: float, computed: list[list[float]], excess: float = 0.0) -> Record:
        spans = [Span(False, 0.0, 1.0, excess)]
        speeds = [0.5, 2.0][: len(computed)]
        return Record(marks=[0, 0, 0, 0, seconds], computed=computed, speeds=speeds, compute_spans=spans)

    first, second = [record(100, [[50.0]]) for _ in range(2)]
    records = [
        [first, record(20, [[5.0, 1.0], [2.0]]), record(8, [[3.0, 3.0]], 0.5)],
        [second, record(21, [[1.0, 4.0, 2.0], [3.0]]), record(9, [[]])],
    ]
    odc = update_of(records, in_step=False)
    assert (odc.seconds, odc.ideal_seconds, odc.computed) == (30, 7 + 3 + 6, (14 + 10) / 2)
    assert odc.done == (0.5 * (6 + 6 + 7) + 2 * (2 + 3)) / 2
    assert odc.reached == pytest.approx(16 / 30) and odc.busy == pytest.approx(0.4)
    assert (odc.overruns.spans, odc.overruns.longer) == (4, 1)
    assert update_of(records, in_step=True).ideal_seconds == (5 + 4 + 2) + 3 + (3 + 3)


def test_the_table_of_updates_has_no_gain_that_the_verdict_refuses() -> None:
    updates = {name: Update(10.0, 9.0, 8.0, done, Overruns(1, 0)) for name, done in (("a", 6.0), ("b", 9.0))}
    for others, speedups in ((0.1, ["1.00x", "1.50x"]), (0.5, ["-", "-"])):
        table = update_table(updates, load.verdict("reached", others, 3))
        assert [row.split()[-1] for row in table[1:]] == speedups


def test_the_picture_of_updates_has_no_share_that_the_verdict_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from charts import Charts
    from matplotlib.figure import Figure

    words: list[str] = []
    filled: set[bool] = set()

    def collect(figure: Figure, *_: object, **__: object) -> None:
        words.extend(text.get_text() for text in figure.axes[0].texts)
        bars = (bar for container in figure.axes[0].containers for bar in container)
        filled.update(bar.get_facecolor()[3] > 0 and bar.get_hatch() is None for bar in bars)

    monkeypatch.setattr(Figure, "savefig", collect)
    updates = {name: Update(10.0, 9.0, 8.0, 6.0, Overruns(1, 0)) for name in ("a", "b")}
    for others, shown, text in ((0.1, True, "90.0% reached, 20% idle"), (0.5, False, "not resolved")):
        words.clear()
        filled.clear()
        Charts(tmp_path, "title", load.verdict("reached", others, 3)).updates(updates)
        assert words == [text] * 2 and filled == {shown}


def test_an_update_in_the_summary_has_the_reason_why_the_verdict_refuses_it() -> None:
    update = Update(10.0, 9.0, 8.0, 6.0, Overruns(1, 0))
    for others, why in ((0.1, None), (0.5, "other programs used 50% of the processors")):
        written = update.summary(load.verdict("reached", others, 3))
        assert (written["reached"], written["resolved"], written["why_not_resolved"]) == (0.9, why is None, why)


def test_the_verdict_says_whether_the_bar_is_reached() -> None:
    for seconds, words in (
        (19.9, "odc-free 50.3% (at least 95%: missed), odc-equal 99.5%"),
        (10.4, "odc-free 96.2% (at least 95%: reached)"),
    ):
        equal = {"odc-equal": Update(10.05, 10.0, 9.0, 9.0, Overruns(1, 0))}
        assert words in sentence(equal | {"odc-free": Update(seconds, 10.0, 9.0, 9.0, Overruns(1, 0))})


def test_an_answer_costs_what_a_7b_model_takes() -> None:
    settings = parse_settings(["--emulate", "2", "--blocks", "3"], "")
    clock = [0.0]
    device = device_of(settings)
    device.clock = lambda: clock[0]
    device.sleep = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    a, b = libodc.plan_cost("7b")
    for tokens in (32, 8):
        device.start_microbatch(cost_of(tokens))
        before, x = device.computed, tokens / 32
        for backward in (False, True):
            for _ in range(3):
                device.begin(first=True)
                device.end(backward=backward)
        assert device.computed - before == pytest.approx(2 * (a * x * x + b * x) / (a + b))


def test_noise_is_of_the_speed_in_a_minibatch() -> None:
    """A rank's, the same in all arms and for all its answers there."""
    noise = 0.25
    settings = parse_settings(["--emulate", "2", "--noise", f"{noise}"], "")
    drawn = {(a, b, c): speed_of(settings, a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert drawn == {place: speed_of(settings, *place) for place in drawn}
    assert len(set(drawn.values())) == len(drawn)
    assert 1 - noise <= min(drawn.values()) < 1 - 0.9 * noise and 1 + 0.9 * noise < max(drawn.values()) <= 1 + noise
    assert sum(drawn.values()) / len(drawn) == pytest.approx(1, abs=0.05)
    other = parse_settings(["--emulate", "2", "--noise", f"{noise}", "--seed", "2"], "")
    assert speed_of(other, 0, 0, 0) != drawn[0, 0, 0]
    assert speed_of(parse_settings(["--emulate", "2"], ""), 0, 0, 0) == 1

    def singly(microbatch: list[int]) -> list[list[int]]:
        return [[one] for one in microbatch]

    def update(noise: str, passes: Callable[[list[int]], list[list[int]]] = singly) -> list[list[float]]:
        """Of two minibatches of the sixth rollout, by rank 3: the seconds that a device of a manual clock takes."""
        clock = [0.0]
        settings = parse_settings(["--emulate", "2", "--noise", noise], "")
        device, record = device_of(settings), Record()
        device.clock = lambda: clock[0]
        device.sleep = lambda seconds: clock.__setitem__(0, clock[0] + seconds)

        class Loss:
            def backward(self) -> None:
                for backward in (False, False, True, True):
                    device.begin(first=False)
                    device.end(backward=backward)

        learner: Any = SimpleNamespace(settings=settings, device=device, rank=3)
        learner.computing = partial(Learner.computing, learner)
        learner.passes = lambda minibatch: [one for microbatch in minibatch for one in passes(microbatch)]
        learner.totals_of = lambda groups: Totals()
        learner.loss = lambda samples, totals: Loss()
        learner.minibatches = lambda sampler: [[[0, 1]], [[1]]]
        learner.end_minibatch = lambda *_: None
        data = {index: {"tokens": torch.zeros(tokens)} for index, tokens in enumerate((32, 8))}
        Learner.update(learner, 5, SimpleNamespace(token_divisor=1.0), data, [], record)  # type: ignore[arg-type]
        return record.computed

    for number, (noisy, plain) in enumerate(zip(update(f"{noise}"), update("0"), strict=True)):
        assert noisy == pytest.approx([one / drawn[5, number, 3] for one in plain])
    plain = update("0")
    assert [len(one) for one in plain] == [2, 1]
    # An attention does not reach over the answers of a pass, so it costs what they cost one by one.
    assert update("0", lambda microbatch: [microbatch]) == [[pytest.approx(sum(plain[0]))], plain[1]]


def test_collectives_run_the_longest_answers_first() -> None:
    for arm, wanted in (("fsdp2-equal", [[1], [2], [0]]), ("fsdp2-packed", [[0, 1], [2]])):
        learner: Any = object.__new__(ways.ARMS[arm])
        learner._lengths = [5, 9, 7, 9]
        learner.padding_of = lambda passes: 4 - passes
        assert learner.passes([[2], [], [0, 1]]) == wanted
        assert learner._padding == 4 - len(wanted)


def test_the_plans_of_the_arms() -> None:
    """Free counts balance what equal ones cannot; lookahead has other answers in a minibatch, and balances more."""
    settings = parse_settings(["--emulate", "1", "--minibatch", "4", "--answers", "8"], "")
    lengths = torch.tensor([200] * 4 + [20] * 12 + [6] * 112)

    def planned(arm: str) -> list[list[list[int]]]:
        """By minibatch and rank."""
        ranks = []
        for rank in range(4):
            learner: Any = object.__new__(ways.ARMS[arm])
            learner.settings, learner.rank, learner.size = settings, rank, 4
            minibatches = learner.sampler(0, lengths, lengths // 2)
            ranks.append([[index for one in minibatch for index in one] for minibatch in minibatches])
        return [list(ranks) for ranks in zip(*ranks, strict=True)]

    def slowest(plan: list[list[list[int]]]) -> float:
        return sum(max(sum(cost_of(int(lengths[i])) for i in rank) for rank in ranks) for ranks in plan)

    equal, free, ahead = (planned(arm) for arm in ("odc-equal", "odc-free", "odc-ahead"))
    assert all(len({len(rank) for rank in ranks}) == 1 for ranks in equal)
    assert any(len({len(rank) for rank in ranks}) > 1 for ranks in free)
    assert slowest(ahead) < slowest(free) < slowest(equal)
    contents = [[sorted(i for rank in ranks for i in rank) for ranks in plan] for plan in (equal, free, ahead)]
    assert contents[0] == contents[1] != contents[2]


def test_what_answers_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advantages have the mean 0 and the deviation 1 in each group; a group of equal rewards teaches nothing."""
    monkeypatch.setattr(policy, "log_probabilities", lambda model, packed: torch.full((packed.learnt,), float(model)))
    learner: Any = SimpleNamespace(
        settings=parse_settings(["--answers", "3"], ""), policy=1, reference=2, padding_of=lambda passes: 0
    )
    learner.pad_scores = lambda padding, record: None
    groups = [
        Group(2, [3, 1], [[1, 3, sorting.END], [3], [1]], [1.0, 0.0, 0.5]),
        Group(4, [5, 5], [[5]] * 3, [0.5] * 3),
    ]
    scored = Learner.score(learner, groups, Record())
    assert sorted(scored) == [6, 7, 8]
    advantages = [float(scored[number]["advantage"]) for number in (6, 7, 8)]
    assert advantages == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5), 0])
    assert scored[6]["tokens"].tolist() == [3, 1, sorting.SORT, 1, 3, sorting.END]
    assert scored[6]["old"].tolist() == [1, 1, 1] and scored[7]["reference"].tolist() == [2]


def test_what_is_packed() -> None:
    """As many answers as have the tokens of the longest of the rollout, in equally many passes on each rank; twice as
    many where three ranks have eight answers a group."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    lengths = torch.tensor([draw.randint(6, 39) for _ in range(64)])
    settings = parse_settings(["--emulate", "1", "--minibatch", "4", "--answers", "8"], "")
    for arm, size, longest in (("collective-packed", 4, 1), ("odc-packed", 4, 1), ("fsdp2-packed", 3, 2)):
        ranks: list[list[list[list[int]]]] = []
        for rank in range(size):
            learner: Any = object.__new__(ways.ARMS[arm])
            learner.settings, learner.rank, learner.size = settings, rank, size
            learner._lengths, learner.padding_of = lengths.tolist(), lambda passes: 0
            sampler = learner.sampler(0, lengths, lengths // 2)
            ranks.append([list(learner.passes(minibatch)) for minibatch in learner.minibatches(sampler)])
        for minibatch in zip(*ranks, strict=True):
            packs = [one for passes in minibatch for one in passes]
            assert sum(map(len, packs)) == 32
            budget = longest * lengths.max()
            assert all(sum(lengths[index] for index in one) <= budget for one in packs)
            if arm != "odc-packed":
                assert len({len(passes) for passes in minibatch}) == 1
                # A rank whose two shortest have no room together packs nothing, and then nobody does.
                shortest = [sorted(lengths[index] for one in passes for index in one)[:2] for passes in minibatch]
                assert len(packs) < 32 or any(sum(two) > budget for two in shortest)
            else:
                assert len(packs) < 32
        assert sorted(i for rank in ranks for minibatch in rank for one in minibatch for i in one) == list(range(64))


def test_rollouts_without_signal_end_in_no_hang(tmp_path: Path) -> None:
    """One prompt a rank, and a policy that is seldom right: ranks have nothing to train on."""
    ended, summary = forked(tmp_path, 2, "--rollouts", "8", "--prompts", "2", "--answers", "3", "--warm-up", "60")
    assert ended.returncode == 0, ended.stderr
    for name, arm in summary["arms"].items():
        assert 0 < arm["kept_groups"] < 16, name
        assert any(count == 0 for rank in arm["answers_by_rank"] for count in rank), name
    # Where only one rank's group has signal, the other passes over nothing.
    assert summary["arms"]["fsdp2-equal"]["passes_over_nothing"] > 0


def test_one_prompt_is_enough_for_free_counts(tmp_path: Path) -> None:
    options = ["--rollouts", "2", "--prompts", "1", "--minibatch", "1", "--warm-up", "60", "--arms", "odc-free"]
    ended, summary = forked(tmp_path, 2, *options, "--answers", "2", "--kl", "0", "--seed", "0")
    assert ended.returncode == 0, ended.stderr
    assert summary["arms"]["odc-free"]["groups"] == 2
    assert summary["settings"]["kl"] == summary["settings"]["seed"] == 0


def test_wrong_settings_are_told(tmp_path: Path) -> None:
    (tmp_path / "report 3").write_text("")
    for wrong, words in (
        (["--prompts", "2"], "grpo.py: --prompts 2: equal counts need at least one for each of 3 ranks"),
        ([], f"grpo.py: --report {tmp_path / 'report 3'} cannot be made: File exists"),
    ):
        ended, _ = forked(tmp_path, 3, *wrong)
        assert ended.returncode != 0
        assert [line for line in ended.stderr.splitlines() if "grpo.py" in line] == [words]
    for wrong, words in (
        (["--width", "33"], "multiple of 32"),
        (["--kl", "-1"], '"-1" is not a number from 0 to 1000'),
        (["--answers", "1"], "--answers 1: advantages compare a group's answers, so two are the least"),
        (["--noise", "0.1"], "--noise 0.1: it is of emulated devices, so --emulate is needed, too"),
        (["--noise", "1"], '"1" is not a number from 0 to 0.9'),
        (["--emulate", "1e308"], "--emulate 1e+308: at most 600 s for an answer"),
    ):
        ended, _ = forked(tmp_path, 1, *wrong)
        assert ended.returncode == 2 and words in ended.stderr


def drawn_plainly(model: Any, prompt: list[int], count: int, seed: int) -> list[list[int]]:
    """By forwards over whole sequences, without kept keys and values."""
    draw = torch.Generator().manual_seed(seed)
    made: list[list[int]] = [[] for _ in range(count)]
    running = list(range(count))
    while running and len(made[running[0]]) < 2 * len(prompt) + 2:
        rows = [[sorting.START, *prompt, sorting.SORT, *made[i]] for i in running]
        tokens = torch.tensor(rows)
        length = tokens.shape[1]
        positions = torch.arange(length).repeat(len(rows))[None]
        packed = Packed(tokens.view(1, -1), positions, tokens.view(1, -1), (length,) * len(rows))
        logits = model(packed)[0].view(len(rows), length, -1)[:, -1]
        chosen = torch.multinomial(logits.softmax(-1), 1, generator=draw)[:, 0].tolist()
        for i, token in zip(running, chosen, strict=True):
            made[i].append(token)
        running = [i for i in running if made[i][-1] != sorting.END]
    return made


def test_answers_are_drawn_as_by_whole_forwards() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    torch.manual_seed(seed)
    model = Decoder(sorting.VOCABULARY, 64, 2).double()
    with torch.no_grad():
        model.output.weight.mul_(20)  # so that answers end at different times
        for prompt in ([3, 1], [5] * 9, list(range(10))):
            made = answers(model, prompt, 6, seed)
            assert made == drawn_plainly(model, prompt, 6, seed)
            assert all(len(one) <= 2 * len(prompt) + 2 and sorting.END not in one[:-1] for one in made)
        model.output.weight.mul_(0.05)  # nearly any token may come
        assert answers(model, [3, 1], 6, seed) != answers(model, [3, 1], 6, seed + 1)


def test_the_loss_is_clipped_and_regularised() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    settings = parse_settings(["--clip", "0.2", "--kl", "0.1"], "")
    torch.manual_seed(seed)
    model = Decoder(sorting.VOCABULARY, 32, 1)
    prompt, answer = [4, 2], [2, 4, sorting.END]
    with torch.no_grad():
        new = policy.log_probabilities(model, policy.packed_answers([(prompt, answer)])).tolist()
    for advantage in (-1.5, 0.7):
        old = [one + draw.uniform(-0.6, 0.6) for one in new]
        reference = [one + draw.uniform(-0.6, 0.6) for one in new]
        wanted = wanted_divergence = 0.0
        for n, o, r in zip(new, old, reference, strict=True):
            ratio = math.exp(n - o)
            gain = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            divergence = math.exp(r - n) - (r - n) - 1
            wanted_divergence += divergence
            wanted += 0.1 * divergence - gain
        sample = {
            "tokens": torch.tensor([*prompt, sorting.SORT, *answer]),
            "old": torch.tensor(old),
            "reference": torch.tensor(reference),
            "advantage": torch.tensor([advantage]),
        }
        learner: Any = SimpleNamespace(settings=settings, policy=model)
        totals = Totals()
        assert Learner.loss(learner, [sample], totals).item() == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        assert totals.sums["divergence"].value == pytest.approx(wanted_divergence, rel=1e-4, abs=1e-5)
        assert totals.sums["tokens"].value == 3
        assert totals.most_off == pytest.approx(
            max(abs(math.exp(n - o) - 1) for n, o in zip(new, old, strict=True)), rel=1e-4
        )
        other = sample | {"tokens": torch.tensor([7, sorting.SORT, 3]), "advantage": torch.tensor([-0.3])}
        other |= {name: torch.tensor([value]) for name, value in (("old", -2.0), ("reference", -1.5))}
        apart = sum(Learner.loss(learner, [one], Totals()).item() for one in (sample, other))
        assert Learner.loss(learner, [sample, other], Totals()).item() == pytest.approx(apart, rel=1e-4, abs=1e-5)


def test_a_difference_between_the_odc_arms_is_found() -> None:
    def outcome(rewards: list[float], digest: str = "a", held_out: float = 0.5) -> Outcome:
        return Outcome([[Record(reward=one) for one in rewards]], (0.1, held_out), 1.0, digest)

    one = outcome([0.25, 0.5])
    assert difference({"fsdp2-equal": outcome([0.1, 0.2]), "odc-equal": one, "odc-free": one}) is None
    assert "in rollout 1 odc-equal has the reward 0.5 and odc-free 0.75" in str(
        difference({"odc-equal": one, "odc-free": outcome([0.25, 0.75])})
    )
    for other in (outcome([0.25, 0.5], "b"), outcome([0.25, 0.5], "a", 0.6)):
        assert "end with other parameters" in str(difference({"odc-equal": one, "odc-free": other}))


def test_waits_of_a_rollout_are_told_apart() -> None:
    waited = [16.0]

    def waits(seconds: float, result: Any) -> Any:
        def call(*_: Any) -> Any:
            waited[0] += seconds
            return result

        return call

    learner: Any = SimpleNamespace(
        settings=parse_settings([], ""),
        rollout=waits(1, []),
        score=waits(2, {}),
        exchange=waits(4, (None, {})),
        update=waits(8, None),
        waited=lambda: waited[0],
        waited_for_reference=lambda: 0.5,
    )
    record = Learner.run(learner, 0)
    assert (record.parameters_waited, record.answers_waited, record.reference_waited) == (1, 2 + 4, 0.5)


def test_steps_of_generation_in_lock_step() -> None:
    """Three ranks, of which one has no prompts in the second rollout."""

    def outcome(*steps: list[list[int]]) -> Outcome:
        return Outcome([[Record(steps=one) for one in rank] for rank in steps], (0.1, 0.5), 1.0, "a")

    three = outcome([[3, 5], [4]], [[4], []], [[1, 1, 2], [7]])
    assert three.steps == 3 + 5 + 4 + 4 + 1 + 1 + 2 + 7
    assert three.lock_steps == 3 * ((5 + 3 + 1) + 7)
    alone = outcome([[3, 5], [4]])
    assert alone.steps == alone.lock_steps == 12


def test_rewards() -> None:
    prompt = [7, 0, 7, 3]
    assert sorting.reward(prompt, [0, 3, 7, 7, sorting.END]) == 1
    for wrong in ([0, 3, 7, 7, 7, sorting.END], [0, 3, 7, sorting.END], [0, 3, 7, 7], [0, 7, 3, 7, sorting.END], []):
        assert sorting.reward(prompt, wrong) == 0
    assert sorting.prompts_of(1, 2, 5) == sorting.prompts_of(1, 2, 5) != sorting.prompts_of(1, 3, 5)
    lengths = [len(one) for one in sorting.prompts_of(3, 0, 2000)]
    assert min(lengths) == sorting.LEAST and max(lengths) == sorting.MOST
    assert sorted(lengths)[1000] < sum(lengths) / 2000  # a tail
