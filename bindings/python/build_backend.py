# SPDX-License-Identifier: Apache-2.0
"""scikit-build-core, whose source distributions lack the core: in the repository it lies above this folder."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import (
    build_editable,
    build_wheel,
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
PARTS = ("CMakeLists.txt", "LICENSE", "cuda", "include", "lib")


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
            project.write_text(project.read_text().replace('"../../include', '"core/include'))
        os.chdir(copy)
        try:
            return build.build_sdist(str(folder), config_settings)
        finally:
            os.chdir(HERE)
