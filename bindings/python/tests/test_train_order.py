# SPDX-License-Identifier: Apache-2.0
"""The experiment that compares orders of samples."""

import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from options import WINDOW, parse_options
from order import Change, Moves, Order, minibatches, orders, sentence
from samples import Sample
from scripts import run_forked

import libodc

SCRIPT = Path(__file__).parents[1] / "examples" / "train" / "train.py"


def test_every_order_has_the_same_samples_and_weighs_them_alike() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    options = parse_options(["order", "--ranks", "2", "--minibatch", "2"], "")
    size = options.ranks * options.minibatch
    samples = []
    for _ in range(2 * WINDOW * size):
        tokens = 1 + int(65535 / (1 + draw.randrange(60)))
        learnt = torch.tensor([draw.random() < 0.7 for _ in range(7)] + [True])
        samples.append(Sample(tokens, torch.zeros(8, dtype=torch.int64), learnt))
    chosen = draw.sample(range(len(samples)), WINDOW * size)
    tokens_of = {i: int(samples[i].learnt.sum()) for i in chosen}
    for order in orders(options):
        moves = Moves()
        made = list(minibatches(order, samples, chosen, options, moves))
        assert [len(one.samples) for one in made] == [size] * WINDOW
        assert sorted(i for one in made for i in one.samples) == sorted(chosen)
        for first in range(0, WINDOW, order.minibatches):
            group = made[first : first + order.minibatches]
            own = [sum(tokens_of[i] for i in one.samples) for one in group]
            mean = sum(own) / len(own)
            assert [one.divisor for one in group] == pytest.approx(own if order.own_divisor else [mean] * len(own))
            if not order.sorted:
                assert {i for one in group for i in one.samples} == set(chosen[first * size :][: len(group) * size])
        rows = [
            libodc.plan([samples[i].length for i in one.samples], 2, max_tokens=65536, policy="sorted-rows", cost="7b")
            for one in made
        ]
        assert moves.sorted_rows == pytest.approx(sum(one.collective_makespan for one in rows))
        assert moves.samples == len(chosen) and moves.makespan <= moves.makespan_before * (1 + 1e-12)
        assert (moves.moved == 0) == (order.minibatches == 1 or moves.makespan == moves.makespan_before)


def test_a_change_has_its_standard_error() -> None:
    found = Change([0.01, 0.02, 0.03])
    assert found.mean == pytest.approx(0.02) and found.error == pytest.approx(0.01 / 3**0.5)
    assert "lookahead 2 changes the held-out loss by +2.00% ± 0.58%: beyond" in sentence(Order("lookahead 2", 2), found)
    assert "within its standard error" in sentence(Order("lookahead 2", 2), Change([-0.01, 0.02]))


def test_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for number in range(40):
        (tmp_path / "corpus" / f"{number:02}.txt").write_text("To be, or not to be. " * (1 + number**4 // 9000))
    small = ["--ranks", "2", "--minibatch", "2", "--width", "32", "--blocks", "1", "--length-scale", "64"]
    words = [str(SCRIPT), "order", "--data", "corpus", "--seeds", "2", "--windows", "1", *small]
    ended = run_forked(1, words, tmp_path, 120)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "report/order/summary.json").read_text())
    assert [one["name"] for one in summary["orders"]] == [order.name for order in orders(parse_options(["order"], ""))]
    assert summary["orders"][0]["change_by_seed"] == [0, 0] and all(summary["orders"][-1]["change_by_seed"])
    for one in summary["orders"]:
        assert set(one["held_out_losses"]) == {"1", "2"}
        assert all(len(losses) == 2 and losses[1] < losses[0] for losses in one["held_out_losses"].values())
        assert one["name"] in ended.stdout
    assert summary["verdict"] in ended.stdout
    assert {path.name for path in (tmp_path / "report/order").iterdir()} == {"orders.png", "summary.json", "index.html"}
