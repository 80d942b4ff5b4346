# SPDX-License-Identifier: Apache-2.0
"""The code of MIGRATING.md, for tests to run as it is printed."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "MIGRATING.md").read_text()


def block(heading: str, language: str, index: int = 0) -> str:
    """The code block number `index` of a language below a second-level heading."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    found: list[str] = re.findall(rf"^ *```{language}\n(.*?)^ *```", section, re.M | re.S)
    return textwrap.dedent(found[index])


def before(diff: str) -> str:
    return _side(diff, "-")


def after(diff: str) -> str:
    return _side(diff, "+")


def applied(diff: str, code: str) -> str:
    """`code`, changed as `diff` says."""
    assert code.count(before(diff)) == 1, f"the diff does not apply once:\n{diff}"
    return code.replace(before(diff), after(diff))


def patched(diff: str, code: str) -> str:
    """The same for each part of a diff that begins with a comment."""
    for part in re.split(r"^ #.*\n", diff, flags=re.M)[1:]:
        code = applied(part, code)
    return code


def _side(diff: str, mark: str) -> str:
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] in (mark, " ", ""))
