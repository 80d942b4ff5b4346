# SPDX-License-Identifier: Apache-2.0
"""Samples: the beginnings of documents, in proportion to the documents' lengths, so that they differ as much.

A small cap would make them alike instead, and leave nothing to balance. Plans and costs see the whole lengths.
"""

from __future__ import annotations

import codecs
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import Document, Findings, InputError
from tokenizer import Tokenizer

_BAR = 40


@dataclass(frozen=True)
class Sample:
    """`length`: tokens before scaling. `tokens`: int64, `learnt`: bool, both of shape (ceil(length / scale),)."""

    length: int
    tokens: torch.Tensor
    learnt: torch.Tensor


def scaled(length: int, scale: int) -> int:
    return -(-length // scale)


def make_samples(
    documents: Sequence[Document], tokenizer: Tokenizer, scale: int, budget: int, findings: Findings
) -> list[Sample]:
    """One sample per document. Those above `budget` tokens, the most of a microbatch, are cut to it; those without
    learnt tokens are left out."""
    samples = []
    for document in documents:
        parts = [(tokenizer.encode(part.text), part.learnt) for part in document.parts]
        length = sum(len(tokens) for tokens, _ in parts)
        if length > budget:
            findings.add(f"cut to the budget of {budget} tokens", document.where)
            length = budget
        kept = scaled(length, scale)
        tokens = torch.cat([tokens for tokens, _ in parts])[:kept].clone()
        learnt = torch.cat([torch.full((len(tokens),), learnt) for tokens, learnt in parts])[:kept].clone()
        if learnt.any():
            samples.append(Sample(length, tokens, learnt))
        else:
            findings.add("nothing to learn, left out", document.where)
    return samples


def read_lengths(path: Path, budget: int) -> list[int]:
    """One length per line, from 1 to `budget`."""
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("ascii", "replace").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    lengths = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text.isdecimal() or not 0 < int(text) <= budget:
            raise InputError(f'{path}:{number}: "{text[:40]}" is not a length of 1 to {budget} tokens')
        lengths.append(int(text))
    if not lengths:
        raise InputError(f"{path}: no lengths in it; give one number a line")
    return lengths


def samples_of_lengths(lengths: Sequence[int], text: Sequence[Sample], scale: int) -> list[Sample]:
    """Samples of given lengths, cut from the tokens of the others one after another, starting over at the end."""
    tokens = torch.cat([sample.tokens for sample in text])
    learnt = torch.cat([sample.learnt for sample in text])
    made = []
    begin = 0
    for length in lengths:
        place = torch.arange(begin, begin + scaled(length, scale)) % len(tokens)
        made.append(Sample(length, tokens[place], learnt[place]))
        begin = int(place[-1]) + 1
    return made


def split(samples: Sequence[Sample], held_out: int) -> tuple[list[Sample], list[Sample]]:
    """`held_out` samples at equal distances, and the others; depends on their number only."""
    taken = {(2 * i + 1) * len(samples) // (2 * held_out) for i in range(held_out)}
    rest = [sample for i, sample in enumerate(samples) if i not in taken]
    return rest, [samples[i] for i in sorted(taken)]


def shuffled_passes(count: int, seed: int) -> Iterator[int]:
    """Infinite passes over 0..count-1, each in another order."""
    order = list(range(count))
    source = random.Random(seed)
    while True:
        source.shuffle(order)
        yield from order


def histogram(lengths: Sequence[int]) -> list[str]:
    """Lines of text: how many of the lengths are in each power of two."""
    bins = [0] * max(length.bit_length() for length in lengths)
    for length in lengths:
        bins[length.bit_length() - 1] += 1
    first = next(i for i, count in enumerate(bins) if count)
    most = max(bins)
    return [
        f"{2**i:>8} to {2 ** (i + 1) - 1:>8}  {bins[i]:>6}  {'#' * round(_BAR * bins[i] / most)}".rstrip()
        for i in range(first, len(bins))
    ]
