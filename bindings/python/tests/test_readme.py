# SPDX-License-Identifier: Apache-2.0
"""The examples of the package's README run as they are printed."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

import libodc

PACKAGE = Path(__file__).parents[1]


def example(page: Path, begin: str) -> str:
    """The one block of Python that begins so."""
    found: list[str] = [
        code for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S) if code.startswith(begin)
    ]
    assert len(found) == 1, f"{page} has {len(found)} examples that begin with {begin!r}"
    return found[0]


def join(rank: int, size: int, job: str) -> None:
    os.environ.update(ODC_RANK=str(rank), ODC_SIZE=str(size), ODC_JOB=job)


def first(rank: int, size: int, job: str) -> None:
    join(rank, size, job)
    names: dict[str, object] = {}
    exec(example(PACKAGE / "README.md", "import libodc\nimport numpy"), names)
    assert (names["mine"] == -10 * size * (size + 1) / 2).all()  # type: ignore[attr-defined]


def test_the_first_example() -> None:
    run_ranks(3, first)


def traced(rank: int, size: int, job: str, folder: Path) -> None:
    join(rank, size, job)
    os.chdir(folder)
    with libodc.init() as context:
        names = {"libodc": libodc, "context": context, "minibatches": [range(1 + rank)] * 3}
        exec(example(PACKAGE / "README.md", "with libodc.trace("), names)


def test_tracing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    run_ranks(2, traced, tmp_path)
    assert {path.suffix for path in (tmp_path / "report").iterdir()} >= {".json", ".png"}


def loaded(rank: int, size: int, job: str) -> None:
    join(rank, size, job)
    lengths = [1 + 700 * (index % 90) for index in range(200)]
    with libodc.init() as context:
        names = {"context": context, "lengths": lengths, "dataset": range(200), "epochs": 2}
        exec(example(PACKAGE / "README.md", "from libodc.torch import MinibatchSampler"), names)
    assert sum(len(microbatch) for microbatch in names["microbatches"]) > 0  # type: ignore[attr-defined]


def test_loading_data() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run_ranks(2, loaded, seconds=300)  # its data loaders start processes


def claimed(rank: int, size: int, job: str) -> None:
    from libodc.torch import MinibatchSampler

    class Job:
        context = libodc.init(rank=rank, size=size, job=job, timeout=60)

        def sync_gradients(self, divisor: float) -> None:
            counts = self.context.sync([len(ran), divisor])
            assert counts == [4.0 * (self.context.minibatch), 16.0 * size]

    ran: list[Any] = []
    sampler = MinibatchSampler(lengths=[4] * 8, minibatch_size=4, max_tokens=4, rank=rank, num_replicas=size)
    loader = sampler.loader(range(8))
    code = example(PACKAGE / "README.md", "for microbatches in loader.claims(job):").replace(
        "...", "ran.append(microbatch)"
    )
    exec(code, {"loader": loader, "sampler": sampler, "job": Job(), "ran": ran})


def test_claiming() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run_ranks(2, claimed)


def test_random_numbers_of_a_microbatch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from libodc.torch import MinibatchSampler

    def drawn(rank: int, before: int) -> list[float]:
        torch.manual_seed(before)
        sampler = MinibatchSampler(lengths=[4] * 8, minibatch_size=4, max_tokens=4, rank=rank, num_replicas=2)
        numbers: list[float] = []
        exec(code, {"sampler": sampler, "draw": lambda: numbers.append(float(torch.rand(())))})
        return numbers

    code = example(PACKAGE / "README.md", "from libodc.torch import seeded").replace("...", "draw()")
    assert drawn(0, 1) == drawn(0, 2) and len({*drawn(0, 1), *drawn(1, 1)}) == 8


def test_the_statistics_look_as_printed() -> None:
    page = (PACKAGE / "README.md").read_text()
    (shown,) = re.findall(r"```\n(group .*?)```", page, re.S)
    totals = libodc.Stats(57, 44_800_000, 28, 22_400_000, 4, 4_000_000, 56_000_000, 5_000_000, 2_140_000, *[0] * 7)
    one = libodc.ContextStats("", 0, 3, 4, totals, [libodc.PeerStats(peer, peer, peer) for peer in range(3)])
    words, printed = ([re.sub(r"[\d.]+", "0", word) for word in text.split()] for text in (shown, str(one)))
    assert words == printed


def test_the_memory_table_follows_its_formulas() -> None:
    page = (PACKAGE.parents[1] / "docs" / "fsdp2.md").read_text()
    rows = re.findall(r"^\| ([^|]*) \| `([^`|]*)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", page, re.M)
    assert len(rows) == 11
    for name, formula, *columns in rows:
        python = formula.replace(" N", " * N").replace("N (", "N * (")
        for parameters, column in zip((1e9, 8e9, 70e9), columns, strict=True):
            for ranks, shown in zip((8, 64, 512), column.split(", "), strict=True):
                gib = eval(python, {"N": parameters, "R": ranks, "L": 8}) / 2**30
                assert abs(float(shown) - gib) <= (0.005 if gib < 10 else 0.05) + 1e-9, (name, ranks, shown, gib)
