# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer and TRL's trainers with MIGRATING.md's mixin, sharded by Accelerate's FSDP2 plugin and by
transformers' DistributedConfig, are bit-identical to the same trainers over plain FSDP2. The weights are tied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hugging_face import (
    ARGUMENTS,
    PLUGIN,
    be_launched,
    full_parameters,
    load,
    mixin,
    new_process,
    no_warnings,
    samples,
    save_models,
    tokenizer,
    transformers,
)
from logged import warnings_logged
from torch_ranks import dist, run_torch_ranks, torch

import libodc

trl = pytest.importorskip("trl", reason="trl is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")
Dataset = pytest.importorskip("datasets").Dataset

Options = dict[str, Any]
LIMIT = 300.0  # seconds; a loaded machine imports and compiles slowly


def text(words: list[int]) -> str:
    return " ".join(f"w{word}" for word in words)


def plain_trainer(options: Options) -> tuple[type, Options]:
    rows = [{"input_ids": ids, "labels": ids} for ids in samples(32)]
    return transformers.Trainer, {
        "args": transformers.TrainingArguments(**options),
        "train_dataset": rows,
        "eval_dataset": rows[:5],
        "data_collator": transformers.DataCollatorForSeq2Seq(tokenizer()),
    }


def sft(options: Options) -> tuple[type, Options]:
    return trl.SFTTrainer, {
        "args": trl.SFTConfig(**options, bf16=False),
        "train_dataset": Dataset.from_list([{"input_ids": ids} for ids in samples(32)]),
    }


def dpo(options: Options) -> tuple[type, Options]:
    triples = zip(samples(32), samples(32, seed=4), samples(32, seed=5), strict=True)
    return trl.DPOTrainer, {
        "args": trl.DPOConfig(**options, bf16=False),
        "train_dataset": Dataset.from_list(
            [{"prompt": text(a), "chosen": text(b), "rejected": text(c)} for a, b, c in triples]
        ),
    }


def completions_to_judge(options: Options, loss_type: str) -> tuple[type, Options]:
    pairs = zip(samples(32), samples(32, seed=4), strict=True)
    return trl.KTOTrainer, {
        "args": trl.KTOConfig(**options, bf16=False, loss_type=loss_type),
        "train_dataset": Dataset.from_list(
            [{"prompt": text(a), "completion": text(b), "label": index % 2 == 0} for index, (a, b) in enumerate(pairs)]
        ),
    }


def kto(options: Options) -> tuple[type, Options]:
    return completions_to_judge(options, "kto")


def kto_without_kl(options: Options) -> tuple[type, Options]:
    return completions_to_judge(options, "apo_zero_unpaired")


def reward(options: Options) -> tuple[type, Options]:
    pairs = zip(samples(32), samples(32, seed=4), strict=True)
    return trl.RewardTrainer, {
        "args": trl.RewardConfig(**options, bf16=False),
        "train_dataset": Dataset.from_list([{"chosen": text(a), "rejected": text(b)} for a, b in pairs]),
    }


def different_words(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(one.split()))) for one in completions]


def prompts(config: Any, options: Options) -> Options:
    return {
        "args": config(**options, bf16=False, beta=0.1, num_generations=4, max_completion_length=8),
        "train_dataset": Dataset.from_list([{"prompt": text(ids)} for ids in samples(32)]),
        "reward_funcs": different_words,
    }


def grpo(options: Options) -> tuple[type, Options]:
    return trl.GRPOTrainer, prompts(trl.GRPOConfig, options)


def grpo_of_top_entropies(options: Options) -> tuple[type, Options]:
    return grpo({"top_entropy_quantile": 0.5, **options})


def rloo(options: Options) -> tuple[type, Options]:
    return trl.RLOOTrainer, prompts(trl.RLOOConfig, options)


def made(maker: Callable[[Options], tuple[type, Options]], over: Any, model: Any, options: Options, **more: Any) -> Any:
    """A trainer; `over`: the mixin, or None for plain FSDP2; `options`: its training arguments."""
    base, arguments = maker(ARGUMENTS | options)
    kind = type(base.__name__, (base,) if over is None else (over, base), {})
    return kind(model=model, processing_class=tokenizer(), **arguments, **more)


def assert_same(trainer: Any, other: Any) -> None:
    """Bit by bit."""
    lines = [[one for one in which.state.log_history if "loss" in one] for which in (trainer, other)]
    for mine, theirs in zip(*lines, strict=True):
        assert (mine["loss"], mine["grad_norm"]) == (theirs["loss"], theirs["grad_norm"])
    expected = full_parameters(other.model)
    for name, parameter in full_parameters(trainer.model).items():
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=0, msg=name)


# ---- the same training ----


Cases = dict[Callable[[Options], tuple[type, Options]], str]


def compare_trainers(rank: int, size: int, folder: Path, way: str, cases: Cases, over_odc: Any = None) -> list[str]:
    """Returns the warnings. `over_odc`: the page's mixin unless given."""
    be_launched(rank, size)
    told: list[str] = []
    for maker, kind in cases.items():
        trained = []
        for over in (None, over_odc or mixin()):
            with new_process(way), warnings_logged() as warnings:
                options = {"output_dir": str(folder / "out"), **(PLUGIN if way == "plugin" else {})}
                trainer = made(maker, over, load(folder / kind, way, scores=maker is reward), options)
                trainer.train()
                trained.append(trainer)
        told += warnings
        print(f"{maker.__name__} of {kind}")  # shown where the next line fails
        assert_same(*trained)
    return told


def train_with_the_plugin(rank: int, size: int, folder: Path) -> None:
    makers = (plain_trainer, dpo, kto_without_kl, reward, grpo, rloo)
    assert not compare_trainers(rank, size, folder, "plugin", {sft: "llama"} | dict.fromkeys(makers, "qwen2"))


def test_trainers_with_the_plugin(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, train_with_the_plugin, tmp_path, seconds=LIMIT)


def train_long(rank: int, size: int, folder: Path, maker: Callable[[Options], tuple[type, Options]]) -> None:
    """30 steps in several epochs, whose last batches are fewer than a step's and, of Trainer and SFT, repeat samples;
    clipped, with a decaying rate of learning; evaluated where there is something to evaluate with."""
    be_launched(rank, size)
    trained = []
    for over in (None, mixin()):
        with new_process("plugin"), no_warnings():
            options = {"output_dir": str(folder / "out"), "max_steps": 30, "max_grad_norm": 0.5, **PLUGIN}
            if maker is not grpo:  # its batches are groups of answers
                options |= {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}
            if maker is plain_trainer:
                options |= {"eval_strategy": "epoch"}
            trainer = made(maker, over, load(folder / "qwen2"), options)
            trainer.train()
            trained.append(trainer)
    plain, over_odc = ([line for line in one.state.log_history if "loss" in line] for one in trained)
    assert len(plain) == 30 and plain[-1]["epoch"] > 1
    assert any(line["grad_norm"] > 0.5 for line in plain)
    assert [line["loss"] for line in over_odc] == pytest.approx([line["loss"] for line in plain], rel=1e-6)
    assert_same(*trained)
    evaluations = [[line["eval_loss"] for line in one.state.log_history if "eval_loss" in line] for one in trained]
    assert evaluations[0] == evaluations[1] and (maker is not plain_trainer or len(evaluations[0]) > 3)


@pytest.mark.parametrize("maker", [plain_trainer, sft, grpo])
def test_thirty_steps(tmp_path: Path, maker: Callable[[Options], tuple[type, Options]]) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, train_long, tmp_path, maker, seconds=LIMIT)


def train_in_bf16(rank: int, size: int, folder: Path) -> None:
    """FSDP2 over gloo adds gradients in bf16, and ODC in f32."""
    be_launched(rank, size)
    trained = []
    for over in (None, mixin()):
        with new_process("plugin"), no_warnings():
            options = {"output_dir": str(folder / "out"), "bf16": True, **PLUGIN}
            trainer = made(plain_trainer, over, load(folder / "qwen2"), options)
            trainer.train()
            trained.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
            assert trainer.accelerator.mixed_precision == "bf16"
    assert trained[1] == pytest.approx(trained[0], rel=1e-2)


def test_mixed_precision(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, train_in_bf16, tmp_path, seconds=LIMIT)


def train_in_step(rank: int, size: int, folder: Path) -> None:
    """Losses that are collective, with the mixin but for its compute_loss."""
    bare = mixin()
    del bare.compute_loss
    told = compare_trainers(rank, size, folder, "plugin", dict.fromkeys((kto, grpo_of_top_entropies), "qwen2"), bare)
    assert [line.split()[2] for line in told] == (["collectives,"] * 2 if rank == 0 else [])


def test_collective_losses(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, train_in_step, tmp_path, seconds=LIMIT)


# ---- checkpoints ----


def resume(rank: int, size: int, folder: Path) -> None:
    """Four steps at once, and two in another process after two; evaluated and saved on the way."""
    be_launched(rank, size)

    def trained(output: Path, over: Any, resume_from: Path | None = None, **options: Any) -> Any:
        options |= {"output_dir": str(output), "max_steps": 4, "save_strategy": "steps", "save_steps": 2, **PLUGIN}
        options |= {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
        with new_process("plugin"), no_warnings():
            trainer = made(plain_trainer, over, load(folder / "qwen2"), options)
            trainer.train(resume_from_checkpoint=resume_from and str(resume_from))
            return trainer

    plain = trained(folder / "plain", None)
    over_odc = trained(folder / "odc", mixin())
    assert_same(over_odc, plain)
    evaluations = [
        [line["eval_loss"] for line in one.state.log_history if "eval_loss" in line] for one in (over_odc, plain)
    ]
    assert evaluations[0] == evaluations[1]
    assert_same(trained(folder / "resumed", mixin(), folder / "odc" / "checkpoint-2"), plain)
    done = trained(folder / "done", mixin(), folder / "odc" / "checkpoint-4")  # nothing is left to train
    assert done.job is None


def test_checkpoints(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, resume, tmp_path, seconds=LIMIT)


# ---- uneven counts ----


def split_by_rank(inputs: Options) -> list[Options]:
    """All rows at once on rank 0, one at a time on rank 1."""
    rows = len(inputs["input_ids"])
    assert rows == 3
    at_once = rows if dist.get_rank() == 0 else 1
    return [{name: one[row : row + at_once] for name, one in inputs.items()} for row in range(0, rows, at_once)]


def train_unevenly(rank: int, size: int, folder: Path) -> None:
    """As plain FSDP2 with the same batches. An exception on one rank ends the other's wait."""
    be_launched(rank, size)
    for maker in (plain_trainer, sft):
        trained = []
        for over in (None, mixin(split_by_rank)):
            with new_process("plugin"), no_warnings():
                options = {"output_dir": str(folder / "out"), "per_device_train_batch_size": 3, **PLUGIN}
                options |= {"gradient_accumulation_steps": 1, "optim": "sgd"}
                trainer = made(maker, over, load(folder / "qwen2"), options)
                trainer.train()
                trained.append(full_parameters(trainer.model))
        for name, parameter in trained[1].items():
            torch.testing.assert_close(parameter, trained[0][name], rtol=1e-5, atol=1e-6, msg=name)

    def bad_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("bad sample 17")

    with new_process("plugin"):
        trainer = made(plain_trainer, mixin(), load(folder / "qwen2"), {"output_dir": str(folder / "out"), **PLUGIN})
        if rank == 1:
            type(trainer).compute_loss = bad_loss
        with pytest.raises(ValueError if rank == 1 else libodc.AbortedError, match="bad sample 17"):
            trainer.train()
        dist.barrier()
        trainer.args.auto_find_batch_size = True
        with pytest.raises(AssertionError, match="one rank would begin again"):
            trainer.train()


def test_uneven_counts(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, train_unevenly, tmp_path, seconds=LIMIT)


def gather_in_microbatches(rank: int, size: int, folder: Path) -> None:
    """TRL its metrics, without the mixin's compute_loss; Trainer the tokens seen, if it is to log them."""
    be_launched(rank, size)
    bare = mixin()
    del bare.compute_loss
    for maker, over, more in ((sft, bare, {}), (plain_trainer, mixin(), {"include_num_input_tokens_seen": "all"})):
        with new_process("plugin"), warnings_logged() as warnings:
            options = {"output_dir": str(folder / "out"), "max_steps": 1, **PLUGIN, **more}
            made(maker, over, load(folder / "qwen2"), options).train()
        assert rank != 0 or any("ran between the first forward" in line for line in warnings)


def test_collectives_of_microbatches_are_told(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, gather_in_microbatches, tmp_path, seconds=LIMIT)


# ---- PEFT ----


def train_adapters(rank: int, size: int, folder: Path) -> None:
    be_launched(rank, size)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")

    def trained(maker: Any, over: Any) -> Any:
        with new_process("plugin"), no_warnings():
            model = load(folder / "qwen2")
            torch.manual_seed(0)
            options: Options = {}
            if maker is plain_trainer:
                model = peft.get_peft_model(model, lora)
            else:
                options["peft_config"] = lora
            trainer = made(maker, over, model, {"output_dir": str(folder / "out"), **PLUGIN}, **options)
            trainer.train()
            return trainer

    for maker in (plain_trainer, sft, grpo):
        print(maker.__name__)  # shown where the next line fails
        assert_same(trained(maker, mixin()), trained(maker, None))

    with new_process("loaded"):
        model = peft.get_peft_model(load(folder / "qwen2", "loaded"), lora)
        trainer = made(plain_trainer, mixin(), model, {"output_dir": str(folder / "out")})
        with pytest.raises(libodc.UnsupportedError, match=r"lora_A.*PEFT: create the adapters first"):
            trainer.train()


def test_adapters(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, train_adapters, tmp_path, seconds=LIMIT)


# ---- models that are sharded as they are loaded ----


def use_loaded_models(rank: int, size: int, folder: Path) -> None:
    makers = (sft, dpo, kto_without_kl, reward, grpo, rloo)
    assert not compare_trainers(rank, size, folder, "loaded", {plain_trainer: "llama"} | dict.fromkeys(makers, "qwen2"))
    with new_process("loaded"), pytest.raises(ValueError, match="Resuming is not supported for models sharded at load"):
        options = {"output_dir": str(folder / "out"), "save_strategy": "steps"}
        made(plain_trainer, mixin(), load(folder / "qwen2", "loaded"), options)
    with new_process("loaded"):
        options = {"output_dir": str(folder / "only"), "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
        trainer = made(plain_trainer, mixin(), load(folder / "qwen2", "loaded"), options | {"save_only_model": True})
        trainer.train()
        expected = full_parameters(trainer.model)
    saved = load(folder / "only" / "checkpoint-1")
    for name, parameter in saved.named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=0, msg=name)


def test_models_sharded_as_they_are_loaded(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, use_loaded_models, tmp_path, seconds=LIMIT)


# ---- why a callback cannot sync ----


def call_back(rank: int, size: int, folder: Path) -> None:
    be_launched(rank, size)
    called: list[str] = []

    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            called.append("callback")

    with new_process("plugin"):
        options = {"output_dir": str(folder / "out"), "max_steps": 1, **PLUGIN}
        trainer = made(plain_trainer, None, load(folder / "qwen2"), options, callbacks=[Callback()])
        clip = trainer.accelerator.clip_grad_norm_
        with mock.patch.object(
            trainer.accelerator, "clip_grad_norm_", side_effect=lambda *args: (called.append("clip"), clip(*args))[1]
        ):
            trainer.train()
    assert called == ["clip", "callback"]


def test_callbacks_come_after_clipping(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, call_back, tmp_path, seconds=LIMIT)
