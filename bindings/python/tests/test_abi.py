# SPDX-License-Identifier: Apache-2.0
"""Every size, offset, enum value and prototype against odc.h, as the C compiler sees it."""

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from odc import _abi

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
        "odc_reduction": {f"ODC_{one.name}": one.value for one in _abi.Reduction},
        "odc_policy": {f"ODC_{one.name}": one.value for one in _abi.Policy},
    }
    declared = {
        name: re.findall(r"(ODC_\w+) =", body) for body, name in re.findall(r"enum \w+ \{(.*?)\} (\w+);", CODE, re.S)
    }
    assert {name: set(values) for name, values in declared.items()} == {name: set(v) for name, v in ours.items()}
    names = [value for values in ours.values() for value in values]
    lines = run_c(tmp_path, "\n".join(f'printf("%d\\n", (int){name});' for name in names))
    assert [int(line) for line in lines] == [value for values in ours.values() for value in values.values()]


def as_ctypes(declaration: str) -> Any:
    """Of a parameter or a result, as this package declares it."""
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
    assert _abi.ALL_GATHER._argtypes_ == (ctypes.c_void_p,) * 3 + (ctypes.c_size_t,)
    assert _abi.ALL_GATHER._restype_ is _abi.INTERRUPTED._restype_ is ctypes.c_int
    assert _abi.INTERRUPTED._argtypes_ == (ctypes.c_void_p,)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODC_LIBRARY", "/nonexistent/libodc.so")
    with pytest.raises(ImportError, match=r"/nonexistent/libodc\.so.*ODC_LIBRARY"):
        _abi._load()


def build_stub(folder: Path, version: int) -> Path:
    source = folder / "stub.c"
    source.write_text(f"unsigned odc_version(void) {{ return {version}; }}\n")
    library = folder / "libodc.so.0"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


@pytest.mark.parametrize("version", [7 << 16 | 2 << 8 | 5, 0 << 16 | 0 << 8 | 9])
def test_another_librarys_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    library = build_stub(tmp_path, version)
    monkeypatch.setenv("ODC_LIBRARY", str(library))
    words = re.escape(f"{version >> 16}.{version >> 8 & 255}.{version & 255} was loaded from {library}")
    with pytest.raises(ImportError, match=words + r".* needs 0\.1 or a later 0\.x"):
        _abi._load()


def test_a_later_minor_version_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build_stub(tmp_path, 5 << 8)
    monkeypatch.setenv("ODC_LIBRARY", str(library))
    with pytest.raises(ImportError, match=f"{library} lacks odc_"):
        _abi._load()
