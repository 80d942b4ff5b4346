# SPDX-License-Identifier: Apache-2.0
"""scikit-build-core, and what it does not know: that the core lies above this folder, and in `core` of a source distribution."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import (
    build_wheel,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_sdist",
    "build_wheel",
    "dynamic_metadata",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
UNPACKED = HERE / "core"
CORE = UNPACKED if UNPACKED.exists() else HERE.parent.parent
PARTS = ("CMakeLists.txt", "LICENSE", "cuda", "include", "lib", "packaging/install.cmake", "packaging/odc.pc.in", "packaging/odcConfig.cmake.in")


def dynamic_metadata(field: str, settings: Mapping[str, Any] | None = None) -> str:
    """The version, which lives in odc.h only."""
    header = (CORE / "include/odc/odc.h").read_text()
    return ".".join(re.findall(r"#define ODC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """From a copy, to which the core is added."""
    folder = Path(sdist_directory).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "odc"
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("build", "core", "__pycache__", ".*"))
        for part in PARTS:
            target = copy / "core" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (CORE / part).is_dir() else shutil.copy2)(CORE / part, target)
        os.chdir(copy)
        try:
            return build.build_sdist(str(folder), config_settings)
        finally:
            os.chdir(HERE)
