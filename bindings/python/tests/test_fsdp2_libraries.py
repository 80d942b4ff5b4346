# SPDX-License-Identifier: Apache-2.0
"""transformers' Qwen2 and Llama, unchanged, in tiny random configurations, packed and not."""

import os
from pathlib import Path
from typing import Any

import pytest
from hugging_face import SIZE as SMALL
from hugging_face import transformers
from torch_ranks import dist, run_torch_ranks, torch

from libodc.torch import fsdp2

fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
init_device_mesh = torch.distributed.device_mesh.init_device_mesh

SIZE = SMALL | {"vocab_size": 61, "attn_implementation": "eager"}
COUNTS = [(2, 0, 1), (0, 1, 3)]  # microbatches of each rank in two minibatches


def language_model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "qwen2":
        config = transformers.Qwen2Config(**SIZE, tie_word_embeddings=True)
        return transformers.Qwen2ForCausalLM(config).double()
    tied = kind == "tied llama"
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE, tie_word_embeddings=tied)).double()


def microbatch(minibatch: int, rank: int, index: int, packing: str) -> dict[str, Any]:
    """Three samples of different length: packed into one row with positions that begin again, or padded."""
    generator = torch.Generator().manual_seed(100 * minibatch + 10 * rank + index)
    lengths = torch.randint(3, 9, (3,), generator=generator).tolist()
    samples = [torch.randint(0, SIZE["vocab_size"], (length,), generator=generator) for length in lengths]
    if packing == "packed":
        return {
            "input_ids": torch.cat(samples)[None],
            "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        }
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(samples, batch_first=True),
        "attention_mask": pad([torch.ones(length, dtype=torch.long) for length in lengths], batch_first=True),
    }


def loss_sum(model: Any, batch: dict[str, Any]) -> tuple[Any, int]:
    """Summed over the tokens that have a next one in their sample, and how many these are."""
    ids = batch["input_ids"]
    logits = model(**batch, use_cache=False).logits
    inside = batch["position_ids" if "position_ids" in batch else "attention_mask"][:, 1:] > 0
    losses = torch.nn.functional.cross_entropy(logits[:, :-1][inside], ids[:, 1:][inside], reduction="sum")
    return losses, int(inside.sum())


def train_all(rank: int, size: int) -> None:
    for kind in ("qwen2", "llama"):
        for packing in ("packed", "padded"):
            print(f"{kind}, {packing}")  # shown where the next line fails
            train_over_odc(rank, size, kind, packing)


def train_over_odc(rank: int, size: int, kind: str, packing: str) -> None:
    model = language_model(kind)
    mesh = init_device_mesh("cpu", (size,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with fsdp2.attach(model, optimizer, timeout=60, check=True) as job:
        for minibatch, counts in enumerate(COUNTS):
            total, tokens = 0.0, 0
            for index in range(counts[rank]):
                loss, new = loss_sum(model, microbatch(minibatch, rank, index, packing))
                loss.backward()
                total, tokens = total + loss.item(), tokens + new
            report = job.sync_gradients(weight=tokens, sums={"loss": total})
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(report.sums["loss"])
    expected, reference = train_alone(kind, packing)
    assert losses == pytest.approx(expected, rel=1e-12)
    for (name, parameter), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.full_tensor(), other.data, rtol=1e-12, atol=1e-12, msg=name)


def train_alone(kind: str, packing: str) -> tuple[list[float], Any]:
    model = language_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for minibatch, counts in enumerate(COUNTS):
        total, tokens = 0.0, 0
        for rank, count in enumerate(counts):
            for index in range(count):
                loss, new = loss_sum(model, microbatch(minibatch, rank, index, packing))
                loss.backward()
                total, tokens = total + loss.item(), tokens + new
        for parameter in model.parameters():
            parameter.grad.div_(tokens)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, model


def test_transformers() -> None:
    run_torch_ranks(3, train_all)


def train_as_loaded(rank: int, size: int, kind: str, folder: Path) -> None:
    """As transformers shards a model that it loads: its weights are tied after fully_shard."""
    from transformers.distributed import DistributedConfig

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    model = language_model(kind)
    model.save_pretrained(folder)  # rank 0 does
    dist.barrier()
    alone = type(model).from_pretrained(folder, dtype=torch.float64)
    sharded = DistributedConfig(fsdp_size=size)
    model = type(model).from_pretrained(folder, dtype=torch.float64, distributed_config=sharded)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (model, alone)]
    with fsdp2.attach(model, optimizers[0], timeout=60, check=True) as job:
        for minibatch, counts in enumerate(COUNTS):
            for peer in range(size):
                for index in range(counts[peer]):
                    for one in [alone, model] if peer == rank else [alone]:
                        loss_sum(one, microbatch(minibatch, peer, index, "packed"))[0].backward()
            job.sync_gradients(divisor=1.0)
            for (name, parameter), other in zip(model.named_parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(
                    parameter.grad.full_tensor(), other.grad, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
                )
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for (name, parameter), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(
            parameter.full_tensor(), other.data, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
        )


def train_all_as_loaded(rank: int, size: int, folder: Path) -> None:
    for kind in ("qwen2", "tied llama"):
        print(kind)  # shown where the next line fails
        train_as_loaded(rank, size, kind, folder / kind)


def test_tied_weights_as_transformers_shards_them(tmp_path: Path) -> None:
    run_torch_ranks(3, train_all_as_loaded, tmp_path)
