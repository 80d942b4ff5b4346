# SPDX-License-Identifier: Apache-2.0
"""scikit-build-core, whose source distributions lack the core: in the repository it lies above this folder."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
PARTS = ("CMakeLists.txt", "LICENSE", "cuda", "include", "lib", "tools")

# For pkg-config, and the package of Debian and of Fedora.
LIBRARIES = (
    ("hwloc", "libhwloc-dev", "hwloc-devel"),
    ("expat", "libexpat1-dev", "expat-devel"),
    ("libsodium", "libsodium-dev", "libsodium-devel"),
    ("libhwy", "libhwy-dev", "highway-devel"),
    ("libfabric >= 1.17", "libfabric-dev", "libfabric-devel"),
    ("fmt >= 9", "libfmt-dev", "fmt-devel"),
    ("nlohmann_json", "nlohmann-json3-dev", "json-devel"),
    ("CLI11", "libcli11-dev", "cli11-devel"),
)


def missing_packages() -> list[tuple[str, str, str]]:
    """What the build needs and this machine lacks, and Debian's and Fedora's names of it."""
    missing = []
    if not shutil.which(shlex.split(os.environ.get("CXX") or "c++")[0]):
        missing.append(("g++", "g++", "gcc-c++"))
    pkg_config = shutil.which(os.environ.get("PKG_CONFIG") or "pkg-config")
    if pkg_config is None:
        missing.append(("pkg-config", "pkg-config", "pkgconf-pkg-config"))
    for name, debian, fedora in LIBRARIES:
        # Without pkg-config nothing can be asked; a package that is there is not installed again.
        if pkg_config is None or subprocess.run([pkg_config, "--exists", name]).returncode != 0:
            missing.append((name, debian, fedora))
    return missing


def check_packages() -> None:
    missing = missing_packages()
    if missing:
        names, debian, fedora = zip(*missing, strict=True)
        sys.exit(
            f"libodc is built from source and needs what is missing or too old here: {', '.join(names)}\n"
            f"  Debian, Ubuntu: apt-get install {' '.join(debian)}\n  Fedora: dnf install {' '.join(fedora)}"
        )


def build_wheel(wheel_directory: str, *arguments: Any, **named: Any) -> str:
    check_packages()
    return build.build_wheel(wheel_directory, *arguments, **named)


def build_editable(wheel_directory: str, *arguments: Any, **named: Any) -> str:
    check_packages()
    return build.build_editable(wheel_directory, *arguments, **named)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """From a copy of this folder with the core in it."""
    folder = Path(sdist_directory).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "libodc"
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("build", "__pycache__", ".*"))
        if not (HERE / "core").exists():  # else this is a source distribution
            root = HERE.parent.parent
            for source in (found for part in PARTS for found in root.glob(part)):
                target = copy / "core" / source.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
            project = copy / "pyproject.toml"
            text = project.read_text().replace('"../../include', '"core/include')
            project.write_text(text.replace('"../.."', '"core"').replace('"bindings/python/', '"../'))
        os.chdir(copy)
        try:
            return build.build_sdist(str(folder), config_settings)
        finally:
            os.chdir(HERE)
