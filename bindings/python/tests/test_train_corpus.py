# SPDX-License-Identifier: Apache-2.0
"""The input of the training example, and its errors for input on which it cannot train."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from corpus import Document, Findings, InputError, read_documents


def read(data: Path) -> tuple[list[Document], dict[str, list[str]]]:
    findings = Findings()
    return read_documents(data, findings), findings.places


def lines(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records))
    return path


def test_the_standard_library_in_one_order() -> None:
    documents = read_documents(None, Findings())
    names = [document.where for document in documents]
    assert names == [document.where for document in read_documents(None, Findings())]
    assert {"argparse.py", "asyncio/events.py"} <= set(names)
    assert len(set(names)) == len(names)
    assert all(name.endswith(".py") for name in names)
    assert not any({"test", "tests", "site-packages"} & set(Path(name).parts[:-1]) for name in names)


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("bee")
    (tmp_path / "a.txt").write_text("ay")
    (tmp_path / "c.txt").write_text("cee")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.md").write_text("zed\r\nä")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "x.txt").write_text("not read")
    documents, places = read(tmp_path)
    assert [(d.where, [(p.text, p.learnt) for p in d.parts]) for d in documents] == [
        ("a.txt", [("ay", True)]),
        ("b.txt", [("bee", True)]),
        ("c.txt", [("cee", True)]),
        ("a/z.md", [("zed\r\nä", True)]),
    ]
    assert places == {}


def test_files_that_are_left_out_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("one\ntwo\nthré".encode("latin-1"))
    (tmp_path / "picture").write_bytes(b"PNG\0\1")
    (tmp_path / "text.txt").write_text("text")
    documents, places = read(tmp_path)
    assert [document.where for document in documents] == ["text.txt"]
    assert places == {
        "empty, left out": ["empty.txt"],
        "binary, left out": ["picture"],
        "not UTF-8, left out": ["latin.txt:3"],
    }


def test_findings_name_the_first_places() -> None:
    findings = Findings()
    for i in range(4):
        findings.add("empty, left out", f"{i}.py")
    findings.add("binary, left out", "b")
    assert findings.lines() == ["4 empty, left out: 0.py, 1.py, 2.py, ...", "1 binary, left out: b"]
    assert findings.counts() == {"empty, left out": 4, "binary, left out": 1}


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no text to train on$"):
        read(tmp_path)
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"no text to train on \(1 empty, left out: empty.txt\)"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"empty.txt is neither a directory of text files nor a .jsonl file"):
        read(tmp_path / "empty.txt")


def test_jsonl(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
    ]
    documents, places = read(lines(tmp_path, {"text": "one\u2028two"}, "", {"messages": chat}, {"text": ""}))
    assert [document.where for document in documents] == ["data.jsonl:1", "data.jsonl:3"]
    assert [(part.text, part.learnt) for part in documents[0].parts] == [("one\u2028two", True)]
    assert [(part.text, part.learnt) for part in documents[1].parts] == [
        ("<|system|>\n", False),
        ("Be brief.\n", False),
        ("<|user|>\n", False),
        ("Why?\n", False),
        ("<|assistant|>\n", False),
        ("Because.\n", True),
    ]
    assert places == {"empty, left out": ["data.jsonl:2", "data.jsonl:4"]}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("{", "not JSON: Expecting property name"),
        ([], 'must be an object with either "text" or "messages"'),
        ({"prompt": "x"}, 'must be an object with either "text" or "messages"'),
        ({"text": "x", "messages": []}, 'must be an object with either "text" or "messages"'),
        ({"text": 3}, '"text" must be a string, not int'),
        ({"text": "a\ud800"}, '"text" has a lone surrogate at character 1'),
        ({"messages": "x"}, '"messages" must be a list'),
        ({"messages": [{"role": "user"}]}, 'message 1 must be an object with "role" and "content"'),
        ({"messages": [{"role": "user", "content": None}]}, 'message 1\'s "content" must be a string, not NoneType'),
    ],
)
def test_lines_that_are_refused_are_named(tmp_path: Path, record: Any, text: str) -> None:
    path = lines(tmp_path, {"text": "good"}, record)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2: {text}")


def test_jsonl_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n{"text": "\xff"}\n')
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:3: not UTF-8: byte 0xff"
