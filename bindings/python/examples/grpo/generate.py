# SPDX-License-Identifier: Apache-2.0
"""Answers of a decoder, token by token, with the keys and values of earlier tokens kept. The parameters must be whole:
modules are called one by one, so FSDP2's hooks do not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import sorting
import torch
from decoder import Block, Decoder, rotate, rotation_at
from options import HEAD
from torch.nn import functional

_Cache = list[tuple[torch.Tensor, torch.Tensor]]


def answers(model: Decoder, prompt: Sequence[int], count: int, seed: int) -> list[list[int]]:
    """`count` answers to a prompt. Their bits depend on the parameters, the prompt and the seed only: not on which rank
    draws them, nor on the other prompts."""
    draw = torch.Generator().manual_seed(seed)
    given = [sorting.START, *prompt, sorting.SORT]
    made: list[list[int]] = [[] for _ in range(count)]
    running = list(range(count))
    cache: _Cache = []
    tokens = torch.tensor([given] * count)
    most = sorting.most_tokens(prompt)
    for position in range(len(given) - 1, len(given) - 1 + most):
        logits = _next_logits(model, tokens, position, cache)
        chosen = torch.multinomial(logits.softmax(-1), 1, generator=draw)
        for answer, token in zip(running, chosen[:, 0].tolist(), strict=True):
            made[answer].append(token)
        left = [row for row, answer in enumerate(running) if made[answer][-1] != sorting.END]
        if not left:
            break
        running = [running[row] for row in left]
        tokens = chosen[left]
        cache = [(keys[left], values[left]) for keys, values in cache]  # of the answers that have not ended
    return made


def _next_logits(model: Decoder, tokens: torch.Tensor, last: int, cache: _Cache) -> torch.Tensor:
    """Of the token after `tokens`, of which the last is at position `last`; appends to the cache."""
    rotation = rotation_at(torch.arange(last + 1 - tokens.shape[1], last + 1))
    x = model.embedding(tokens)
    first = not cache
    for number, block in enumerate(cast(Iterable[Block], model.blocks)):
        x = x + _attention(block, x, rotation, cache, -1 if first else number)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    logits: torch.Tensor = model.output(model.norm(x[:, -1]))
    return logits


def _attention(
    block: Block, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], cache: _Cache, number: int
) -> torch.Tensor:
    """`number`: of the block in the cache; -1: its first tokens."""
    attention = block.attention
    projected = attention.projections(block.attention_norm(x)).view(*x.shape[:2], 3, attention.heads, HEAD)
    queries, keys, values = projected.permute(2, 0, 3, 1, 4)
    queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
    if number < 0:
        cache.append((keys, values))
    else:
        keys, values = (torch.cat(pair, dim=2) for pair in zip(cache[number], (keys, values), strict=True))
        cache[number] = keys, values
    mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=number < 0)
    out: torch.Tensor = attention.output(mixed.transpose(1, 2).flatten(2))
    return out
