# SPDX-License-Identifier: Apache-2.0
"""The policy: a decoder that FSDP2 shards, its supervised warm-up, and the log-probabilities of answers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import sorting
import torch
from decoder import IGNORED, Decoder, Packed, loss_sum, pack
from samples import Sample
from schedule import WAIT_SECONDS, shard
from settings import Settings
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from libodc.torch import fsdp2

_PACKS, _PACKED = 8, 8  # of a supervised minibatch: packs, and samples of each, whatever the number of ranks
_SUPERVISED_RATE = 3e-3
MOST_NORM = 1.0  # gradients are clipped to it


def made(settings: Settings, mesh: DeviceMesh, like: Decoder | None = None) -> Decoder:
    """`like`: where the parameters are copied from; None: the seed's."""
    torch.manual_seed(settings.seed)
    model = Decoder(sorting.VOCABULARY, settings.width, settings.blocks)
    shard(model, model.blocks, mesh, torch.float32)
    if like is not None:
        copy_parameters(like, model)
    return model


def copy_parameters(source: Decoder, target: Decoder) -> None:
    """Of this rank's shards."""
    with torch.no_grad():
        for mine, other in zip(target.parameters(), source.parameters(), strict=True):
            cast(DTensor, mine).to_local().copy_(cast(DTensor, other).to_local())


def packed_answers(answered: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Packed:
    """`answered`: prompts, each with its answer."""
    return pack([_sample(prompt, answer) for prompt, answer in answered], sorting.START)


def log_probabilities(model: Decoder, packed: Packed) -> torch.Tensor:
    """Of each token of the answers, one after the other."""
    learnt = packed.targets[0] != IGNORED
    by_token: torch.Tensor = model(packed)[0][learnt].log_softmax(-1)
    return by_token.gather(1, packed.targets[0][learnt][:, None])[:, 0]


def warmed_up(settings: Settings, mesh: DeviceMesh, tell: Callable[[int, float], None]) -> Decoder:
    """Trained on solutions, with exact sums: the same bits for any number of ranks. `tell`: after each minibatch."""
    model = made(settings, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_SUPERVISED_RATE)
    source = random.Random(f"warm-up {settings.seed}")
    with fsdp2.attach(model, optimizer, timeout=WAIT_SECONDS, sums="exact") as job:
        for number in range(settings.warm_up):
            packs = [[sorting.draw_prompt(source) for _ in range(_PACKED)] for _ in range(_PACKS)]
            tokens, loss = 0, 0.0
            for prompts in packs[mesh.get_rank() :: mesh.size()]:
                packed = packed_answers((prompt, sorting.solution(prompt)) for prompt in prompts)
                one = loss_sum(model, packed)
                one.backward()  # type: ignore[no-untyped-call]
                tokens, loss = tokens + packed.learnt, loss + one.item()
            report = job.sync_gradients(weight=tokens, sums={"loss": loss, "tokens": tokens})
            job.clip_grad_norm_(MOST_NORM)
            optimizer.step()
            optimizer.zero_grad()
            tell(number, report.sums["loss"] / report.sums["tokens"])
    return model


def _sample(prompt: Sequence[int], answer: Sequence[int]) -> Sample:
    tokens = torch.tensor([*prompt, sorting.SORT, *answer])
    return Sample(len(tokens), tokens, torch.arange(len(tokens)) > len(prompt))


def digest(model: Decoder) -> str:
    """Of all parameters. Collective."""
    text = hashlib.sha256()
    for name, parameter in model.named_parameters():
        whole = cast(DTensor, parameter.detach()).full_tensor().contiguous()
        text.update(name.encode() + whole.view(torch.uint8).numpy().tobytes())
    return text.hexdigest()[:16]
