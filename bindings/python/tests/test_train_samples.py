# SPDX-License-Identifier: Apache-2.0
"""Tokens, samples and minibatches of the training example."""

import codecs
import random
import sys
from itertools import islice, pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from corpus import Document, Findings, InputError, Part
from samples import histogram, make_samples, read_lengths, samples_of_lengths, shuffled_passes, split
from tokenizer import ByteTokenizer, open_tokenizer
from workload import CostModel, Workload, ideal

import libodc


def document(*parts: tuple[str, bool], where: str = "d") -> Document:
    return Document(where, tuple(Part(text, learnt) for text, learnt in parts))


def made(*documents: Document, scale: int = 1, budget: int = 65536, findings: Findings | None = None) -> list:  # type: ignore[type-arg]
    return make_samples(documents, ByteTokenizer(), scale, budget, findings or Findings())


def test_bytes_are_tokens() -> None:
    tokenizer = open_tokenizer(None)
    text = "aä€\0\n"
    assert tokenizer.encode(text).tolist() == list(text.encode())
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.vocabulary == 257 and tokenizer.start == 256


def test_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    built = tokenizers.Tokenizer(model)
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    tokenizer = open_tokenizer(path)
    assert tokenizer.encode("b a x").tolist() == [1, 0, 2]
    assert (tokenizer.start, tokenizer.vocabulary) == (3, 4)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json is not a tokenizer that"):
        open_tokenizer(path)


def test_without_its_package_a_tokenizer_file_is_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"^/nope needs the tokenizers package: pip install tokenizers$"):
        open_tokenizer(Path("/nope"))


def test_samples_keep_the_proportions() -> None:
    texts = ["x" * n for n in (1, 31, 32, 33, 3200)]
    samples = made(*(document((text, True)) for text in texts), scale=32)
    assert [sample.length for sample in samples] == [1, 31, 32, 33, 3200]
    assert [len(sample.tokens) for sample in samples] == [1, 1, 1, 2, 100]
    assert all(sample.learnt.all() for sample in samples)


def test_prompts_are_not_learnt() -> None:
    (sample,) = made(document(("ab", False), ("cd", True), ("e", False)))
    assert bytes(sample.tokens.tolist()) == b"abcde"
    assert sample.learnt.tolist() == [False, False, True, True, False]


def test_what_exceeds_the_budget_is_cut_and_counted() -> None:
    findings = Findings()
    samples = made(
        document(("x" * 10, True), where="fits"),
        document(("x" * 11, True), where="long"),
        document(("p" * 10, False), ("answer", True), where="prompt"),
        scale=2,
        budget=10,
        findings=findings,
    )
    assert [sample.length for sample in samples] == [10, 10]
    assert [len(sample.tokens) for sample in samples] == [5, 5]
    assert findings.places == {
        "cut to the budget of 10 tokens": ["long", "prompt"],
        "nothing to learn, left out": ["prompt"],
    }


def test_samples_of_given_lengths() -> None:
    text = made(document(("abcdefg", True)), document(("hij", False), ("k", True)))
    samples = samples_of_lengths([8, 3, 14], text, 2)
    assert [sample.length for sample in samples] == [8, 3, 14]
    assert [bytes(sample.tokens.tolist()) for sample in samples] == [b"abcd", b"ef", b"ghijkab"]
    assert samples[2].learnt.tolist() == [True, False, False, False, True, True, True]


def test_lengths_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("3\n 70 \n")
    assert read_lengths(path, 70) == [3, 70]
    for bad in ("0", "-1", "1.5", "x", "", "71", "9" * 30):
        path.write_text(f"3\n{bad}\n")
        with pytest.raises(InputError) as caught:
            read_lengths(path, 70)
        assert str(caught.value) == f'{path}:2: "{bad}" is not a length of 1 to 70 tokens'
    path.write_bytes(codecs.BOM_UTF8 + b"3\r\n70\r\n")
    assert read_lengths(path, 70) == [3, 70]
    path.write_text("")
    with pytest.raises(InputError, match="no lengths in it"):
        read_lengths(path, 70)
    with pytest.raises(InputError, match="cannot be read"):
        read_lengths(tmp_path, 70)


def test_the_held_out_are_apart() -> None:
    samples = made(*(document(("x" * n, True)) for n in range(1, 51)))
    rest, held_out = split(samples, 7)
    assert len(held_out) == 7 and len(rest) == 43
    lengths = [sample.length for sample in held_out]
    assert sorted(lengths + [sample.length for sample in rest]) == list(range(1, 51))
    assert max(b - a for a, b in pairwise(lengths)) <= 8
    assert [sample.length for sample in split(samples, 7)[1]] == lengths


def test_passes_are_permutations() -> None:
    order = list(islice(shuffled_passes(10, 3), 30))
    assert all(sorted(order[i : i + 10]) == list(range(10)) for i in (0, 10, 20))
    assert order == list(islice(shuffled_passes(10, 3), 30))
    assert order[:10] != order[10:20]


def test_the_histogram_counts_all() -> None:
    lines = histogram([1, 2, 3, 8, 8, 15])
    assert [line.split()[:4] for line in lines] == [
        ["1", "to", "1", "1"],
        ["2", "to", "3", "2"],
        ["4", "to", "7", "0"],
        ["8", "to", "15", "3"],
    ]
    assert [line.count("#") for line in lines] == [13, 27, 0, 40]


def test_minibatches_and_their_ideals() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    source = random.Random(seed)
    samples = made(*(document(("x" * source.randint(1, 900), True)) for _ in range(40)))
    cost = CostModel("7b", 1000)
    workload = Workload(samples, cost, ["lb-micro", "lb-mini"])
    workload.add_minibatches(5, ranks=3, per_rank=4, seed=seed)
    a, b = libodc.plan_cost("7b")
    for minibatch in workload.minibatches:
        assert minibatch.samples == 12
        chosen = [i for rank in minibatch.plans["lb-micro"] for microbatch in rank for i in microbatch]
        assert len(chosen) == 12
        assert minibatch.tokens == sum(samples[i].length for i in chosen)
        for plan in minibatch.plans.values():
            placed = sorted(i for rank in plan for microbatch in rank for i in microbatch)
            assert placed == sorted(chosen)
            costs = [
                [sum(a * (samples[i].length / 32e3) ** 2 + b * samples[i].length / 32e3 for i in m) for m in rank]
                for rank in plan
            ]
            assert all(sum(samples[i].length for i in m) <= 1000 for rank in plan for m in rank)
            found = workload.costs_of(plan)
            assert ideal(found, in_step=False) == pytest.approx(max(map(sum, costs)), rel=1e-12)
            steps = max(map(len, costs))
            in_step = sum(max(rank[k] if k < len(rank) else 0 for rank in costs) for k in range(steps))
            assert ideal(found, in_step=True) == pytest.approx(in_step, rel=1e-12)
        assert len({len(rank) for rank in minibatch.plans["lb-micro"]}) == 1
