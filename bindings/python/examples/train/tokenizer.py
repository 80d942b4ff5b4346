# SPDX-License-Identifier: Apache-2.0
"""Text to token ids: bytes, or the vocabulary of a Hugging Face `tokenizer.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from corpus import InputError


class Tokenizer(Protocol):
    """`start` is the id before every sample; ids are less than `vocabulary`."""

    vocabulary: int
    start: int

    def encode(self, text: str) -> torch.Tensor:
        """Token ids, int64 of shape (tokens,)."""


class ByteTokenizer:
    """A token is a byte of UTF-8."""

    vocabulary = 257
    start = 256

    def encode(self, text: str) -> torch.Tensor:
        """Raises UnicodeEncodeError for lone surrogates, which have no bytes."""
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long() if text else torch.empty(0).long()


class FileTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` package; its own special tokens are not added."""

    def __init__(self, path: Path) -> None:
        """Raises InputError."""
        try:
            import tokenizers
        except ImportError:
            raise InputError(f"{path} needs the tokenizers package: pip install tokenizers") from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise InputError(f"{path} is not a tokenizer that the tokenizers package can read: {error}") from None
        self.start = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        self.vocabulary = self.start + 1

    def encode(self, text: str) -> torch.Tensor:
        text.encode()  # lone surrogates: the same error as from bytes
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)


def open_tokenizer(path: Path | None) -> Tokenizer:
    """None: bytes."""
    return ByteTokenizer() if path is None else FileTokenizer(path)
