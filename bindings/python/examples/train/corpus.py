# SPDX-License-Identifier: Apache-2.0
"""Documents to train on: text files of a directory, or lines of a JSONL file, in a fixed order.

What cannot be trained on is either left out and counted in `Findings`, or an InputError that names file and line.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SKIPPED_DIRECTORIES = {"test", "tests", "site-packages", "dist-packages", "__pycache__"}
_PROBED_BYTES = 8000  # as in git, a NUL among them makes a file binary
_NAMED = 3


class InputError(ValueError):
    """The user's input cannot be used; says what is wrong, in which file and line."""


@dataclass(frozen=True)
class Part:
    """A piece of a document; `learnt`: whether its tokens count in the loss."""

    text: str
    learnt: bool


@dataclass(frozen=True)
class Document:
    where: str  # file, or file:line
    parts: tuple[Part, ...]


def is_chat(document: Document) -> bool:
    """Messages begin with a role, which is not learnt."""
    return not document.parts[0].learnt


@dataclass
class Findings:
    """Input that was skipped or changed: its places, by kind."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        self.places.setdefault(kind, []).append(where)

    def counts(self) -> dict[str, int]:
        return {kind: len(places) for kind, places in self.places.items()}

    def lines(self) -> list[str]:
        """One sentence per kind, with the first places."""
        return [
            f"{len(places)} {kind}: {', '.join(places[:_NAMED])}{', ...' if len(places) > _NAMED else ''}"
            for kind, places in self.places.items()
        ]


def read_documents(data: Path | None, findings: Findings) -> list[Document]:
    """None: the installed Python's standard library. Otherwise a directory of text files or a .jsonl file."""
    if data is None:
        library = Path(sysconfig.get_path("stdlib"))
        documents = list(_read_files(library, ".py", findings))
    elif data.is_dir():
        documents = list(_read_files(data, "", findings))
    elif data.suffix == ".jsonl":
        documents = list(_read_lines(data, findings))
    elif data.exists():
        raise InputError(f"{data} is neither a directory of text files nor a .jsonl file")
    else:
        raise InputError(f"{data} does not exist; give a directory of text files or a .jsonl file")
    if not documents:
        left_out = "; ".join(findings.lines())
        raise InputError(f"{data or library}: no text to train on{f' ({left_out})' if left_out else ''}")
    return documents


def _files(directory: Path, suffix: str) -> Iterator[Path]:
    for root, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if name not in _SKIPPED_DIRECTORIES)
        for name in sorted(names):
            path = Path(root, name)
            if name.endswith(suffix) and path.is_file() and not path.is_symlink():
                yield path


def _read_files(directory: Path, suffix: str, findings: Findings) -> Iterator[Document]:
    for path in _files(directory, suffix):
        where = str(path.relative_to(directory))
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        if not content:
            findings.add("empty, left out", where)
        elif b"\0" in content[:_PROBED_BYTES]:
            findings.add("binary, left out", where)
        else:
            try:
                yield Document(where, (Part(content.decode(), True),))
            except UnicodeDecodeError as error:
                findings.add("not UTF-8, left out", f"{where}:{_line(content, error)}")


def _line(content: bytes, error: UnicodeDecodeError) -> int:
    return content.count(b"\n", 0, error.start) + 1


def _read_lines(path: Path, findings: Findings) -> Iterator[Document]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{_line(content, error)}: not UTF-8: byte {content[error.start]:#04x}") from None
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a string may contain U+2028
        where = f"{path.name}:{number}"
        if line.strip():
            document = Document(where, _parts(line, f"{path}:{number}"))
            if any(part.text for part in document.parts):
                yield document
                continue
        if line.strip() or number <= text.count("\n"):  # the text after the last newline is not a line
            findings.add("empty, left out", where)


def _parts(line: str, where: str) -> tuple[Part, ...]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict) or ("text" in record) == ("messages" in record):
        raise InputError(f'{where}: must be an object with either "text" or "messages"')
    if "messages" in record:
        return tuple(_chat(record["messages"], where))
    return (Part(_encodable(record["text"], '"text"', where), True),)


def _chat(messages: Any, where: str) -> Iterator[Part]:
    """A message is its role on a line of its own, then its content; the assistant's is learnt."""
    if not isinstance(messages, list):
        raise InputError(f'{where}: "messages" must be a list')
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise InputError(f'{where}: message {number} must be an object with "role" and "content"')
        role = _encodable(message["role"], f'message {number}\'s "role"', where)
        content = _encodable(message["content"], f'message {number}\'s "content"', where)
        yield Part(f"<|{role}|>\n", False)
        yield Part(f"{content}\n", role == "assistant")


def _encodable(text: Any, what: str, where: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{where}: {what} must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {what} has a lone surrogate at character {error.start}, which is no text") from None
    return text
