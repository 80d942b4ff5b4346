# SPDX-License-Identifier: Apache-2.0
"""The samples of a run: for training, and held out."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from corpus import Findings, InputError, is_chat, read_documents
from options import Options
from samples import Sample, histogram, make_samples, read_lengths, samples_of_lengths, split
from tokenizer import open_tokenizer

_MOST_HELD_OUT = 32


@dataclass(frozen=True)
class Dataset:
    """`start`: the token before every sample. Samples are the first 1/`scale` of their documents."""

    training: list[Sample]
    held_out: list[Sample]
    findings: Findings
    vocabulary: int
    start: int
    scale: int

    def lines(self, options: Options) -> list[str]:
        """A description, in sentences and a histogram."""
        lengths = [sample.length for sample in self.training]
        source = options.data or "the standard library of this Python"
        cut = f"cut into the lengths of {options.lengths}" if options.lengths else "a sample a document"
        return [
            f"text: {source}, {cut}; {len(self.training)} samples to train on, {len(self.held_out)} held out",
            f"samples are the first 1/{self.scale} (--length-scale) of their documents; plans and costs see "
            f"whole lengths: mean {sum(lengths) / len(lengths):.0f}, longest {max(lengths)} tokens",
            *self.findings.lines(),
            *histogram(lengths),
        ]

    def summary(self) -> dict[str, object]:
        lengths = [sample.length for sample in self.training]
        return {
            "samples": len(self.training),
            "held_out": len(self.held_out),
            "mean_length": sum(lengths) / len(lengths),
            "longest": max(lengths),
            "length_scale": self.scale,
            "findings": self.findings.counts(),
        }

    def fingerprint(self) -> int:
        """32 bits that differ when ranks have read different samples."""
        value = 0
        for sample in self.training + self.held_out:
            value = zlib.crc32(sample.tokens.numpy().tobytes(), zlib.crc32(b"%d" % sample.length, value))
        return value


def load_dataset(options: Options, ranks: int) -> Dataset:
    """Raises InputError, also if there is too little for `ranks` ranks."""
    findings = Findings()
    tokenizer = open_tokenizer(options.tokenizer)
    documents = read_documents(options.data, findings)
    scale = options.length_scale or (1 if any(is_chat(document) for document in documents) else options.text_scale)
    samples = make_samples(documents, tokenizer, scale, options.budget, findings)
    without = len(documents) - len(samples)
    if 2 * without > len(documents):
        raise InputError(
            f"{without} of {len(documents)} documents have nothing to learn in their first 1/{scale}: lower "
            "--length-scale, or leave them out"
        )
    held_out = ranks * max(1, min(_MOST_HELD_OUT, len(samples) // 16) // ranks)  # equally many for each rank
    least = held_out + (1 if options.lengths else ranks * options.minibatch)
    if len(samples) < least:
        raise InputError(
            f"{len(samples)} samples are too few: {held_out} are held out, and a minibatch takes "
            f"{ranks * options.minibatch}; lower --minibatch, or --length-scale if samples were left out"
        )
    training, held = split(samples, held_out)
    if options.lengths is not None:
        lengths = read_lengths(options.lengths, options.budget)
        training = samples_of_lengths(lengths, training, scale)
    return Dataset(training, held, findings, tokenizer.vocabulary, tokenizer.start, scale)
