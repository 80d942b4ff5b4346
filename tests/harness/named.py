# SPDX-License-Identifier: Apache-2.0
"""What run.sh's NAMEs are. `named.py TESTS NAME...` reads the lines FOLDER/NAME TARGET... of TESTS, which CMake writes,
and prints `target T`, `ctest T` and `pytest T` for what is to be built and run. An unknown name: a sentence, and 2."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path

PYTHON = Path("bindings/python/tests")


def python_tests() -> dict[str, str]:
    """By the names that they may be given by, what pytest calls them, from bindings/python."""
    tests = {}
    for path in sorted(PYTHON.glob("test_*.py")):
        own = f"tests/{path.name}"
        for name in (path.stem, path.name, str(path), own):
            tests[name] = own
        for function in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            tests[function] = tests[f"{path.name}::{function}"] = tests[f"{path}::{function}"] = f"{own}::{function}"
    return tests


def main() -> int:
    needed = dict(line.split(maxsplit=1) for line in Path(sys.argv[1]).read_text().splitlines())
    python = python_tests()
    lines = []
    for name in sys.argv[2:]:
        if name in python:
            lines.append(f"pytest {python[name]}")
            continue
        folder = name.rstrip("/")
        found = [test for test in needed if test == name or test.split("/")[0] == folder]
        found = found or [test for test in needed if test.split("/")[1] == name]
        if not found:
            known = [*needed, *(test.split("/")[1] for test in needed), *python]
            near = difflib.get_close_matches(name, known, 5, 0.7) + [one for one in needed if name in one][:5]
            hint = f"near it are {', '.join(dict.fromkeys(near))}" if near else "ctest --preset release -N lists all"
            print(f"run.sh: there is no test {name!r}; {hint}", file=sys.stderr)
            return 2
        if len(found) > 1 and folder not in {test.split("/")[0] for test in found}:
            print(f"run.sh: {name!r} is the name of {' and '.join(found)}: say which", file=sys.stderr)
            return 2
        lines += [f"ctest {test}" for test in found]
        lines += [f"target {target}" for test in found for target in needed[test].split()]
    print("\n".join(dict.fromkeys(lines)))
    return 0


sys.exit(main())
