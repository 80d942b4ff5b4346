# SPDX-License-Identifier: Apache-2.0
"""A small decoder (RMSNorm, rotary positions, causal attention, SwiGLU) over packed samples.

A microbatch is one sequence of T tokens: its samples one after another. Positions restart with each sample, and
attention is computed sample by sample, so it stays within them and costs the sum of their squares, not T squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from options import HEAD
from samples import Sample
from torch import nn
from torch.nn import functional

IGNORED = -100  # a target that does not count in the loss
_ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Packed:
    """`tokens`, `positions`, `targets`: int64 of shape (1, T); `lengths`: tokens of each sample, T in all."""

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    lengths: tuple[int, ...]

    @property
    def learnt(self) -> int:
        """The number of targets that count in the loss."""
        return int((self.targets != IGNORED).sum())

    def to(self, device: torch.device) -> Packed:
        return replace(
            self,
            tokens=self.tokens.to(device),
            positions=self.positions.to(device),
            targets=self.targets.to(device),
        )


def pack(samples: Sequence[Sample], start: int) -> Packed:
    """The input is `start` and the sample's tokens but the last; each target is the next token."""
    before = torch.tensor([start])
    return Packed(
        torch.cat([torch.cat([before, sample.tokens[:-1]]) for sample in samples])[None],
        torch.cat([torch.arange(len(sample.tokens)) for sample in samples])[None],
        torch.cat([sample.tokens.masked_fill(~sample.learnt, IGNORED) for sample in samples])[None],
        tuple(len(sample.tokens) for sample in samples),
    )


def rotation_at(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, of shape (T, HEAD / 2)."""
    steps = torch.arange(HEAD // 2, device=positions.device) / (HEAD // 2)
    angles = positions[:, None] * _ROTARY_BASE**-steps
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (i, i + half) of the last dimension."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.projections = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], lengths: tuple[int, ...]
    ) -> torch.Tensor:
        """`x`: (1, T, width)."""
        queries, keys, values = self.projections(x).view(1, -1, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4)
        queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
        # Lengths in one call of split, and attention by sample, without a T x T mask.
        by_sample = zip(*(tensor.split(lengths, dim=2) for tensor in (queries, keys, values)), strict=True)
        seen = [functional.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in by_sample]
        mixed: torch.Tensor = self.output(torch.cat(seen, dim=2).transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * width // 3
        self.gate_and_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_and_up(x).chunk(2, dim=-1)
        fed: torch.Tensor = self.down(functional.silu(gate) * up)
        return fed


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], lengths: tuple[int, ...]
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, lengths)
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class Decoder(nn.Module):
    """`forward(packed)` returns logits of shape (1, T, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        if width % HEAD != 0:
            raise ValueError(f"a width of {width} is not a multiple of {HEAD}, the width of a head")
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)

    def forward(self, packed: Packed) -> torch.Tensor:
        rotation = rotation_at(packed.positions[0])
        x = self.embedding(packed.tokens)
        for block in self.blocks:
            x = block(x, rotation, packed.lengths)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)


def loss_sum(model: nn.Module, packed: Packed) -> torch.Tensor:
    """Cross entropy summed over the tokens that count. It is divided by their number over all ranks only after the
    minibatch, so that plans and schedules do not change the gradient."""
    logits = model(packed)
    return functional.cross_entropy(logits[0], packed.targets[0], ignore_index=IGNORED, reduction="sum")
