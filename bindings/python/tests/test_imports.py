# SPDX-License-Identifier: Apache-2.0
"""The modules of the Python package, of its examples, benchmarks and tests, and of the Rust crates do not import each
other in circles. Imports for type checking and in functions count, too: they hide a circle without cutting it. The
package leaves others' names alone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BINDINGS = Path(__file__).parents[2]
CRATES = sorted(path.parent for path in (BINDINGS / "rust").glob("*/Cargo.toml"))

Graph = dict[str, set[str]]
"""Modules, and those that each imports."""


def circle(graph: Graph) -> list[str]:
    """A circle of imports, its first module again at the end; nothing if there is none."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for other in sorted(graph[path[-1]]):
            if other in path:
                return [*path[path.index(other) :], other]
            if other not in done and (found := search([*path, other])):
                return found
        done.add(path[-1])
        return []

    return next((found for module in sorted(graph) if module not in done and (found := search([module]))), [])


# ---- Python ----


def python_graph(folder: Path, package: str = "") -> Graph:
    """Of the modules in `folder`. That a module's packages are imported before it does not count."""
    files = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        files[".".join(part for part in (package, *parts) if part)] = path
    return {
        name: {found for one in imported(path, name) if (found := longest(one, files)) is not None}
        for name, path in files.items()
    }


def imported(path: Path, name: str) -> Iterator[str]:
    """What the module `name` imports, with the name that it takes from a module behind it."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*above, *filter(None, [node.module]), one.name]) for one in node.names)


def longest(dotted: str, modules: dict[str, Path]) -> str | None:
    """The module that a dotted name is, or is in."""
    while dotted and dotted not in modules:
        dotted = dotted.rpartition(".")[0]
    return dotted or None


@pytest.mark.parametrize("folder", ["libodc", "bench", "examples/grpo", "examples/train", "tests"])
def test_no_circle_of_python_modules(folder: str) -> None:
    graph = python_graph(BINDINGS / "python" / folder, "libodc" if folder == "libodc" else "")
    assert len(graph) > 5 and any(graph.values())
    found = circle(graph)
    assert not found, f"a circle of imports: {' -> '.join(found)}"


def test_the_namespace_of_open_data_cube_is_left_alone(tmp_path: Path) -> None:
    """Its packages are folders `odc` without an __init__.py, which a package of that name would hide."""
    (tmp_path / "odc").mkdir()
    (tmp_path / "odc" / "geo.py").touch()
    command = [sys.executable, "-c", "import libodc, odc.geo"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr


# ---- Rust ----


def rust_graph(source: Path) -> Graph:
    """Of the modules of a crate; its root is "crate". `mod` is no import, and what it declares may use `super`."""
    files = {}
    for path in source.rglob("*.rs"):
        parts = path.relative_to(source).with_suffix("").parts
        files["::".join(("crate", *(part for part in parts if part not in ("lib", "main", "mod"))))] = path
    return {
        name: {module_of(one, files) for one in paths_in(path.read_text(), name)} - {name}
        for name, path in files.items()
    }


def paths_in(code: str, module: str) -> Iterator[str]:
    """The paths in `code` to modules of the crate, from the root on. Relies on rustfmt's layout."""
    inside: list[str] = []  # the indentations of modules written in the file that a line is in
    for line in code.splitlines():
        if found := re.match(r"( *)(?:pub(?:\(\w+\))? )?mod \w+ \{$", line):
            inside.append(found[1])
        elif inside and line == inside[-1] + "}":
            inside.pop()
        written = line.partition("//")[0]
        assert not re.search(r"\b(?:crate|super)::\{", written), f"a use for each module, please: {written}"
        for path in re.findall(r"\b(?:crate|super)(?:::\w+)+", written):
            if path.startswith("crate"):
                yield path
            elif not inside:
                names = path.split("::")
                above = names.count("super")
                yield "::".join([*module.split("::")[:-above], *names[above:]])
        if found := re.match(r"(?:pub(?:\(\w+\))? )?use (\w+(?:::\w+)*)", line):  # of a module that it declares
            yield f"{module}::{found[1]}"


def module_of(path: str, modules: dict[str, Path]) -> str:
    while path not in modules:
        path = path.rpartition("::")[0]
    return path


@pytest.mark.parametrize("crate", CRATES, ids=lambda path: path.name)
def test_no_circle_of_rust_modules(crate: Path) -> None:
    graph = rust_graph(crate / "src")
    assert "crate" in graph
    found = circle(graph)
    assert not found, f"a circle of imports: {' -> '.join(found)}"


# ---- circles are found ----


def test_circles_are_found(tmp_path: Path) -> None:
    for name, code in {
        "__init__.py": "from .a import x\n",
        "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b.c import y\n",
        "b/__init__.py": "",
        "b/c.py": "def y():\n    from .. import d\n",
        "d.py": "import p.a\n",
        "alone.py": "import os\nfrom . import a\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    assert circle(python_graph(tmp_path, "p")) == ["p.a", "p.b.c", "p.d", "p.a"]
    (tmp_path / "d.py").write_text("")
    assert not circle(python_graph(tmp_path, "p"))

    for name, code in {
        "lib.rs": "mod a;\nmod b;\npub use a::X;\n",
        "a.rs": "use crate::b::c::Y; // for Y\nmod sealed {\n    impl P for super::X {}\n}\n",
        "b/mod.rs": "mod c;\npub use c::Y;\n",
        "b/c.rs": "// crate::a\nfn y() -> crate::a::X {}\n",
    }.items():
        (tmp_path / name).write_text(code)
    assert circle(rust_graph(tmp_path)) == ["crate::a", "crate::b::c", "crate::a"]
    (tmp_path / "b/c.rs").write_text("use super::super::a::X;\n")
    assert circle(rust_graph(tmp_path)) == ["crate::a", "crate::b::c", "crate::a"]
    (tmp_path / "b/c.rs").write_text("use crate::X;\n")
    assert circle(rust_graph(tmp_path)) == ["crate", "crate::a", "crate::b::c", "crate"]
    (tmp_path / "b/c.rs").write_text("// crate::a\n")
    assert circle(rust_graph(tmp_path)) == []
