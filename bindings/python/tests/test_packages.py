# SPDX-License-Identifier: Apache-2.0
"""The system packages that `pip install .` names where they are missing, shown with tools that only pretend."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """build_backend with a scikit-build-core that builds nothing, on a machine with nothing on its PATH."""
    core: Any = ModuleType("scikit_build_core")
    core.build = ModuleType("scikit_build_core.build")
    names = re.findall(r"^    ((?:get_requires|prepare)\w+),$", (PACKAGE / "build_backend.py").read_text(), re.M)
    for name in [*names, "build_wheel", "build_editable", "build_sdist"]:
        setattr(core.build, name, lambda *_, **__: "built")
    monkeypatch.setitem(sys.modules, "scikit_build_core", core)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", core.build)
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CXX", "PKG_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    spec = importlib.util.spec_from_file_location("build_backend", PACKAGE / "build_backend.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add_tool(folder: Path, name: str, script: str = "exit 0") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_on_a_bare_machine_all_are_named_at_once(backend: Any) -> None:
    for build in (backend.build_wheel, backend.build_editable):
        with pytest.raises(SystemExit) as told:
            build("nowhere")
        said = str(told.value)
        assert re.search(
            r"apt-get install g\+\+ pkg-config libhwloc-dev .*nlohmann-json3-dev libcli11-dev$", said, re.M
        )
        assert re.search(r"dnf install gcc-c\+\+ pkgconf-pkg-config hwloc-devel .*json-devel cli11-devel$", said, re.M)


def test_only_what_is_missing_is_named(backend: Any, tmp_path: Path) -> None:
    add_tool(tmp_path, "c++")
    add_tool(tmp_path, "pkg-config", 'test "$1" = --exists || exit 2; case $2 in hwloc | fmt*) exit 1 ;; esac')
    assert backend.missing_packages() == [
        ("hwloc", "libhwloc-dev", "hwloc-devel"),
        ("fmt >= 9", "libfmt-dev", "fmt-devel"),
    ]
    add_tool(tmp_path, "pkg-config")
    assert backend.missing_packages() == []
    assert backend.build_wheel("nowhere") == backend.build_editable("nowhere") == "built"


def test_what_is_too_old_is_named(backend: Any, tmp_path: Path) -> None:
    add_tool(tmp_path, "c++")
    add_tool(tmp_path, "pkg-config", 'case $2 in *">="*) exit 1 ;; esac')
    with pytest.raises(
        SystemExit,
        match=r"missing or too old here: libfabric >= 1\.17, fmt >= 9\n.*get install libfabric-dev libfmt-dev\n",
    ):
        backend.build_wheel("nowhere")


def test_the_compiler_may_be_another(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_tool(tmp_path, "pkg-config")
    assert backend.missing_packages() == [("g++", "g++", "gcc-c++")]
    add_tool(tmp_path, "clang++")
    monkeypatch.setenv("CXX", "clang++ -stdlib=libc++")
    assert backend.missing_packages() == []


def test_its_packages_are_those_of_the_install_script(backend: Any) -> None:
    script = (PACKAGE.parents[1] / "tests/install.sh").read_text()
    build = re.search(r'^build="(.*)"$', script, re.M)
    assert build is not None
    named = {debian for _, debian, _ in backend.missing_packages()}
    assert named == set(build[1].split()) - {"cmake", "ninja-build"}  # those two pip brings
