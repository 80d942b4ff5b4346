# SPDX-License-Identifier: Apache-2.0
"""Accelerate's loop as printed in MIGRATING.md, before and after the change, on models wrapped by Accelerate's FSDP2
plugin or by fully_shard: bit-identical. Also the page's statements on loaders, counts, checkpoints and generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hugging_face import (
    accelerate,
    be_launched,
    full_parameters,
    load,
    new_process,
    no_warnings,
    samples,
    save_models,
)
from logged import warnings_logged
from migrating import after, before, block
from torch_ranks import dist, run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2

fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
LIMIT = 300.0  # seconds; a loaded machine imports and compiles slowly


def padded(rows: list[Sequence[int]]) -> dict[str, Any]:
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([torch.tensor(row) for row in rows], batch_first=True)
    mask = pad([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def loader_of(dataset: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=padded)


def run_page(model: Any, accelerator: Any, code: str, loader: Any = None) -> list[float]:
    """The page's loop over 16 samples: two minibatches of two microbatches on each of two ranks. Returns its log."""
    logged: list[float] = []
    names = {
        "accelerator": accelerator,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "loader": loader_of(samples(16)) if loader is None else loader,
        "loss_of": lambda model, batch: model(**batch, use_cache=False).loss,
        "log": lambda value: logged.append(float(value)),
        "fsdp2": fsdp2,
    }
    exec(code, names)
    return logged


def printed_accelerator() -> Any:
    names: dict[str, Any] = {}
    exec(block("Accelerate", "python"), names)
    return names["accelerator"]


def accelerator_with(
    policy: str = "transformer_based_wrap", plugin: dict[str, Any] | None = None, **options: Any
) -> Any:
    made = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy=policy, **(plugin or {}))
    return accelerate.Accelerator(fsdp_plugin=made, **options)


def sharded_by_hand(model: Any) -> Any:
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


@dataclass(frozen=True)
class Case:
    accelerator: Callable[[], Any] = printed_accelerator
    shard: Callable[[Any], Any] = lambda model: model  # before prepare()
    apart: float = 0.0  # the allowed difference of results


def scaling_accelerator() -> Any:
    """As on a GPU: on CPU Accelerate makes no scaler for fp16."""
    made = accelerator_with(gradient_accumulation_steps=2, mixed_precision="fp16")
    made.native_amp = True
    made.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return made


def float8_accelerator() -> Any:
    """Parameters are gathered as float8; the products are emulated."""
    from torchao import float8

    config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    made = accelerator_with(
        plugin={"cpu_ram_efficient_loading": False},
        gradient_accumulation_steps=2,
        mixed_precision="fp8",
        kwargs_handlers=[accelerate.utils.AORecipeKwargs(config=config)],
    )
    prepare = made.prepare

    def prepare_with_scales(*args: Any) -> Any:
        prepared = prepare(*args)
        float8.precompute_float8_dynamic_scale_for_fsdp(prepared[0])
        return prepared

    made.prepare = prepare_with_scales
    return made


def float8_case() -> list[Case]:
    return [Case(float8_accelerator, apart=1e-3)]


def with_adapters(model: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
    return peft.get_peft_model(model, lora)


def cases() -> list[Case]:
    each = accelerate.utils.GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    return [
        Case(),
        Case(shard=with_adapters),
        Case(lambda: accelerator_with("no_wrap", gradient_accumulation_steps=2), shard=sharded_by_hand),
        Case(lambda: accelerator_with(gradient_accumulation_plugin=each), apart=1e-5),  # added in another order
        Case(lambda: accelerator_with(plugin={"activation_checkpointing": True}, gradient_accumulation_steps=2)),
        Case(lambda: accelerator_with(plugin={"cpu_ram_efficient_loading": True}, gradient_accumulation_steps=2)),
        Case(
            lambda: accelerator_with(gradient_accumulation_steps=2, mixed_precision="bf16"), apart=1e-2
        ),  # gloo adds bf16
        Case(scaling_accelerator, apart=1e-3),  # gloo adds fp16
    ]


def compare_loops(rank: int, size: int, folder: Path, cases: Callable[[], list[Case]]) -> None:
    be_launched(rank, size)
    diff = block("Accelerate", "diff")
    for number, case in enumerate(cases()):
        trained = []
        for code in (before(diff), after(diff)):
            with new_process("plugin"), no_warnings():
                model = case.shard(load(folder / "qwen2"))
                logged = run_page(model, case.accelerator(), code)
                trained.append((full_parameters(model), logged))
        (plain, of_microbatches), (over_odc, of_minibatches) = trained
        print(f"case {number}")  # shown where the next lines fail
        for name, parameter in over_odc.items():
            torch.testing.assert_close(parameter, plain[name], rtol=0, atol=case.apart, msg=name)
        means = [(of_microbatches[index] + of_microbatches[index + 1]) / 2 for index in (0, 2)]
        assert of_minibatches == pytest.approx(means, rel=max(case.apart, 1e-6))


def train_in_float8(rank: int, size: int, folder: Path) -> None:
    """With the scales that the page computes before attach, and without them."""
    compare_loops(rank, size, folder, float8_case)
    with new_process("plugin"), warnings_logged() as warnings:
        accelerator = float8_accelerator()
        del accelerator.prepare
        run_page(load(folder / "qwen2"), accelerator, after(block("Accelerate", "diff")))
    assert rank != 0 or any("ran between the first forward of minibatch 0" in line for line in warnings)


def replicate(rank: int, size: int, folder: Path) -> None:
    be_launched(rank, size)
    with new_process("plugin"):
        parallelism = accelerate.ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
        accelerator = accelerator_with(parallelism_config=parallelism)
        model = load(folder / "qwen2")
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(libodc.UnsupportedError, match="is replicated"):
            fsdp2.attach(model, optimizer)


def test_replication_is_refused(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(4, replicate, tmp_path, seconds=LIMIT)


def test_the_page(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, compare_loops, tmp_path, cases, seconds=LIMIT)


def test_float8(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    save_models(tmp_path)
    run_torch_ranks(2, train_in_float8, tmp_path, seconds=LIMIT)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter([row * 4 for row in zip(range(3, 19), range(4, 20), strict=True)])


def load_batches(rank: int, size: int, folder: Path) -> None:
    """Rank 0 reads an iterable dataset for all ranks and broadcasts, unless configured otherwise."""
    be_launched(rank, size)
    for dispatch in (None, False):
        with new_process("plugin"), warnings_logged() as warnings:
            how = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
            accelerator = accelerator_with(gradient_accumulation_steps=2, dataloader_config=how)
            run_page(load(folder / "qwen2"), accelerator, after(block("Accelerate", "diff")), loader_of(Stream()))
        told = any("ran between the first forward" in line for line in warnings)
        assert rank != 0 or told == (dispatch is None)


def count_unevenly(rank: int, size: int, folder: Path) -> None:
    """The page's loop for unequal counts, as one process."""
    be_launched(rank, size)
    minibatches = [[1, 3], [2, 0]] * 5  # microbatches of each rank, of one sample
    rows = iter(samples(30))
    shares = [[[padded([next(rows)]) for _ in range(count)] for count in counts] for counts in minibatches]

    def loss_sum(model: Any, batch: Any) -> tuple[Any, int]:
        tokens = batch["labels"].numel() - 1
        return model(**batch).loss * tokens, tokens

    losses: list[float] = []
    expected: list[float] = []
    with new_process("plugin"), no_warnings():
        model = load(folder / "qwen2")
        names = {
            "accelerator": accelerator_with(),
            "fsdp2": fsdp2,
            "loader": [share[rank] for share in shares],
            "log": losses.append,
            "loss_sum": loss_sum,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        }
        exec(block("Accelerate", "python", 2), names)
        over_odc = full_parameters(names["model"])

    alone = load(folder / "qwen2")
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for share in shares:
        total, tokens = 0.0, 0
        for batch in (one for of_rank in share for one in of_rank):
            loss, new = loss_sum(alone, batch)
            loss.backward()
            total, tokens = total + loss.item(), tokens + new
        expected.append(total / tokens)
        for parameter in alone.parameters():
            parameter.grad.div_(tokens)
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert losses == pytest.approx(expected, rel=1e-6)
    for name, parameter in full_parameters(alone).items():
        torch.testing.assert_close(over_odc[name], parameter, rtol=1e-5, atol=1e-6, msg=name)


def save_and_load(rank: int, size: int, folder: Path) -> None:
    """load_state before attach, or within editing()."""
    be_launched(rank, size)
    rows = samples(8)
    batches = [padded(rows[4 * step + 2 * rank : 4 * step + 2 * rank + 2]) for step in range(2)]

    def steps(accelerator: Any, model: Any, optimizer: Any, job: Any, these: list[Any]) -> None:
        for batch in these:
            accelerator.backward(model(**batch).loss)
            job.sync_gradients()
            optimizer.step()
            optimizer.zero_grad()

    trained = []
    for loads in (None, "before", "after"):
        with new_process("plugin"), no_warnings():
            accelerator = accelerator_with()
            model = load(folder / "qwen2")
            model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
            if loads == "before":
                accelerator.load_state(str(folder / "state"))
            with fsdp2.attach(model, optimizer) as job:
                if loads is None:
                    steps(accelerator, model, optimizer, job, batches[:1])
                    accelerator.save_state(str(folder / "state"))
                elif loads == "after":
                    with job.editing():
                        accelerator.load_state(str(folder / "state"))
                steps(accelerator, model, optimizer, job, batches[1:])
            trained.append(full_parameters(model))
    for other in trained[1:]:
        for name, parameter in trained[0].items():
            torch.testing.assert_close(other[name], parameter, rtol=0, atol=0, msg=name)


def what_the_page_says(rank: int, size: int, folder: Path) -> None:
    load_batches(rank, size, folder)
    count_unevenly(rank, size, folder)
    save_and_load(rank, size, folder)
    generate_alone(rank, size, folder)


def generate_alone(rank: int, size: int, folder: Path) -> None:
    """While one rank generates, the others wait in a barrier; the generated text equals that of one process."""
    be_launched(rank, size)
    prompt = torch.tensor([samples(1)[0]])
    length = (4, 24)[rank]

    def generated(model: Any, **options: Any) -> Any:
        exactly = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **exactly, **options)

    expected = generated(load(folder / "qwen2"))
    assert expected.shape[1] == prompt.shape[1] + length
    for way in ("by hand", "loaded"):
        with new_process(way):
            model = load(folder / "qwen2", way)
            if way == "by hand":
                model = sharded_by_hand(model)
            with fsdp2.attach(model):
                for turn in range(size):
                    if rank == turn:
                        assert torch.equal(generated(model, synced_gpus=False), expected)
                    dist.barrier()


def test_what_the_page_says(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, what_the_page_says, tmp_path, seconds=LIMIT)
