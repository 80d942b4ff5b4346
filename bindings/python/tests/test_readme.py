# SPDX-License-Identifier: Apache-2.0
"""The README's example runs."""

import re
from pathlib import Path

from ranks import run_ranks

CODE = re.search(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.S)


def example(rank: int, size: int, job: str) -> None:
    import os

    os.environ.update(ODC_RANK=str(rank), ODC_SIZE=str(size), ODC_JOB=job)
    assert CODE is not None
    names: dict[str, object] = {}
    exec(CODE[1], names)
    assert (names["mine"] == -10 * size * (size + 1) / 2).all()  # type: ignore[attr-defined]


def test_the_example_runs() -> None:
    run_ranks(3, example)
