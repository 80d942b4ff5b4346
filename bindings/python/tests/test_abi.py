# SPDX-License-Identifier: Apache-2.0
"""Every size, offset, enum value and prototype against odc.h, as the C compiler sees it."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libodc import _abi

ROOT = Path(__file__).resolve().parents[3]
HEADER = (ROOT / "include/odc/odc.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)


def run_c(tmp_path: Path, body: str) -> list[str]:
    source = tmp_path / "abi.c"
    source.write_text(
        f"#include <odc/odc.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {{\n{body}\nreturn 0; }}\n"
    )
    subprocess.run(["cc", "-I", ROOT / "include", source, "-o", tmp_path / "abi"], check=True)
    return subprocess.run([tmp_path / "abi"], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


def test_every_struct_has_the_headers_size_and_offsets(tmp_path: Path) -> None:
    declared = dict(re.findall(r"typedef struct (odc_\w+) \{(.*?)\} \1;", CODE, flags=re.S))
    assert set(declared) == {struct.__name__ for struct in _abi.STRUCTS}
    body = []
    wanted = []
    for struct in _abi.STRUCTS:
        name = struct.__name__
        names = [one for line in declared[name].split(";") if line.strip() for one in line.split(",")]
        fields = [one.split()[-1].strip("*") for one in names]
        assert fields == [field[0] for field in struct._fields_]
        body.append(f'printf("{name} %zu\\n", sizeof({name}));')
        wanted.append(f"{name} {ctypes.sizeof(struct)}")
        for field in fields:
            body.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
            )
            wanted.append(f"{name}.{field} {getattr(struct, field).offset} {getattr(struct, field).size}")
    assert run_c(tmp_path, "\n".join(body)) == wanted


def test_every_enum_has_the_headers_values(tmp_path: Path) -> None:
    ours = {
        "odc_status": {f"ODC_{one.name}": one.value for one in _abi.Status},
        "odc_type": {f"ODC_{one.name}": one.value for one in _abi.Type},
        "odc_memory": {f"ODC_{one.name}_MEMORY": one.value for one in _abi.Memory},
        "odc_summation": {f"ODC_SUM_{one.name}": one.value for one in _abi.Summation},
        "odc_reduction": {f"ODC_{one.name}": one.value for one in _abi.Reduction},
        "odc_policy": {f"ODC_{one.name}": one.value for one in _abi.Policy},
        "odc_window_order": {f"ODC_WINDOW_{one.name}": one.value for one in _abi.WindowOrder},
        "odc_log_level": {f"ODC_LOG_{one.name}": one.value for one in _abi.LogLevel},
    }
    declared = {
        name: re.findall(r"(ODC_\w+) =", body) for body, name in re.findall(r"enum \w+ \{(.*?)\} (\w+);", CODE, re.S)
    }
    assert {name: set(values) for name, values in declared.items()} == {name: set(v) for name, v in ours.items()}
    names = [value for values in ours.values() for value in values]
    lines = run_c(tmp_path, "\n".join(f'printf("%d\\n", (int){name});' for name in names))
    assert [int(line) for line in lines] == [value for values in ours.values() for value in values.values()]


def as_ctypes(declaration: str) -> Any:
    """The type of a parameter or a result, as this package declares it."""
    text = re.sub(r"\bconst\b", "", declaration).strip()
    pointers = text.count("*")
    word = text.replace("*", " ").split()[0]
    plain = {
        "odc_status": ctypes.c_int,
        "int32_t": ctypes.c_int32,
        "uint32_t": ctypes.c_uint32,
        "uint64_t": ctypes.c_uint64,
        "size_t": ctypes.c_size_t,
        "double": ctypes.c_double,
        "float": ctypes.c_float,
        "void": None,
        "char": ctypes.c_char,
    }
    if word in ("odc_context", "odc_shard"):
        return ctypes.c_void_p if pointers == 1 else ctypes.POINTER(ctypes.c_void_p)
    if word == "char":
        return ctypes.c_char_p if pointers == 1 else ctypes.POINTER(ctypes.c_char_p)
    if word == "void" and pointers == 1:
        return ctypes.c_void_p
    kind = plain[word] if word in plain else getattr(_abi, word)
    return ctypes.POINTER(kind) if pointers == 1 else kind


def test_every_prototype_is_the_headers() -> None:
    declared = re.findall(r"ODC_API ([\w *]+?)(odc_\w+)\(([^;]*)\);", CODE)
    assert {name for _, name, _ in declared} == set(_abi.PROTOTYPES)
    for result, name, parameters in declared:
        texts = [] if parameters.strip() == "void" else parameters.split(",")
        wanted = (as_ctypes(result), *(as_ctypes(text) for text in texts))
        assert _abi.PROTOTYPES[name] == wanted, name


def test_callbacks_are_the_headers() -> None:
    assert "typedef int (*odc_all_gather_fn)(void *arg, const void *mine, void *all, size_t bytes);" in CODE
    assert "typedef int (*odc_interrupted_fn)(void *arg);" in CODE
    assert "typedef void (*odc_log_fn)(void *arg, int32_t level, const char *line);" in CODE
    assert _abi.LOG._restype_ is None
    assert _abi.LOG._argtypes_ == (ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
    assert _abi.ALL_GATHER._argtypes_ == (ctypes.c_void_p,) * 3 + (ctypes.c_size_t,)
    assert _abi.ALL_GATHER._restype_ is _abi.INTERRUPTED._restype_ is ctypes.c_int
    assert _abi.INTERRUPTED._argtypes_ == (ctypes.c_void_p,)


def import_says(package: Path, **environment: str) -> str:
    """Imports a copy of the package, with no libodc but those already in it."""
    package.mkdir(exist_ok=True)
    for source in Path(_abi.__file__).parent.glob("*.py"):
        shutil.copy(source, package)
    inherited = {name: value for name, value in os.environ.items() if name != "ODC_LIBRARY"}
    command = [sys.executable, "-c", "import libodc"]
    done = subprocess.run(
        command, cwd=package.parent, env=inherited | environment, capture_output=True, text=True, timeout=60
    )
    return done.stderr.rstrip().rsplit("\n", 1)[-1]


def test_without_a_library_it_is_said_where_it_was_looked_for(tmp_path: Path) -> None:
    package = tmp_path / "libodc"
    said = import_says(package, LD_LIBRARY_PATH="/no/such")
    systems = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libodc.so.0')"]
    if subprocess.run(systems, env=os.environ | {"LD_LIBRARY_PATH": "/no/such"}, capture_output=True).returncode == 0:
        pytest.skip("a libodc is installed here, so none is missing")
    assert said == (
        f"ImportError: no libodc.so.0 is in {package}, and none of the system can be loaded (LD_LIBRARY_PATH is "
        '"/no/such"): libodc.so.0: cannot open shared object file: No such file or directory; '
        "libodc 0.1 or a later 0.x is needed; install that, or name it in ODC_LIBRARY"
    )


def test_both_folders_of_an_editable_installation_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODC_LIBRARY", raising=False)
    monkeypatch.setattr(sys.modules["libodc"], "__path__", ["/sources/libodc", "/installed/libodc"])
    said = _abi._looked_for(_abi.library_path())
    assert said.startswith(
        "no libodc.so.0 is in /sources/libodc or /installed/libodc, and none of the system can be loaded"
    )


def test_what_is_no_library_is_named(tmp_path: Path) -> None:
    package = tmp_path / "libodc"
    package.mkdir()
    broken = package / "libodc.so.0"
    broken.write_text("no library")
    needed = "; libodc 0.1 or a later 0.x is needed; install that, or name it in ODC_LIBRARY"
    said = import_says(package)
    assert said.startswith(f"ImportError: the libodc of this package, {broken}, cannot be loaded: ")
    assert said.endswith(needed)
    other = broken.rename(tmp_path / "libodc.so")
    said = import_says(package, ODC_LIBRARY=str(other))
    assert said.startswith(f"ImportError: ODC_LIBRARY names {other}, which cannot be loaded: ")
    assert said.endswith(needed)


def test_the_version_is_the_headers() -> None:
    numbers = re.findall(r"#define ODC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", CODE)
    assert tuple(map(int, numbers)) == _abi.WRITTEN_FOR


def library_of_version(tmp_path: Path, major: int, minor: int, extra: str = "") -> Path:
    path = tmp_path / f"libodc-{major}-{minor}-{len(extra)}.so"  # dlopen caches by path
    source = f"unsigned odc_version(void) {{ return {major} << 16 | {minor} << 8 | 5; }} {extra}"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
    return path


def test_a_library_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major, minor in (7, 2), (0, 0), (1, 1):
        path = library_of_version(tmp_path, major, minor)
        monkeypatch.setenv("ODC_LIBRARY", str(path))
        needs = "written for libodc 0.1.0 and needs 0.1 or a later 0.x; install that, or name it in ODC_LIBRARY"
        found = rf"libodc {major}\.{minor}\.5 was loaded from {path}, "
        with pytest.raises(ImportError, match=f"{found}.*{re.escape(needs)}"):
            _abi._load()


def test_the_place_of_the_systems_library_is_said(tmp_path: Path) -> None:
    system = tmp_path / "system"
    system.mkdir()
    found = library_of_version(system, 1, 1).rename(system / "libodc.so.0")
    said = import_says(tmp_path / "libodc", LD_LIBRARY_PATH=str(system))
    assert said.startswith(f"ImportError: libodc 1.1.5 was loaded from {found}, but this package was written for ")


def test_a_later_minor_version_serves_and_what_lacks_a_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_else = library_of_version(tmp_path, 0, 9)
    monkeypatch.setenv("ODC_LIBRARY", str(nothing_else))
    with pytest.raises(ImportError, match=rf"{nothing_else} lacks odc_init: "):
        _abi._load()
    functions = "".join(f"void {name}(void) {{}}" for name in _abi.PROTOTYPES if name != "odc_version")
    later = library_of_version(tmp_path, 0, 9, functions)
    monkeypatch.setenv("ODC_LIBRARY", str(later))
    assert _abi._load().odc_version() == 9 << 8 | 5
    monkeypatch.setenv("ODC_LIBRARY", "libm.so.6")
    with pytest.raises(ImportError, match=r"libm\.so\.6 is no libodc: it has no odc_version"):
        _abi._load()
