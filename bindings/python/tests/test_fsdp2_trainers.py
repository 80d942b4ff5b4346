# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer and TRL's trainers with MIGRATING.md's mixin, sharded by Accelerate's FSDP2 plugin and by
transformers' DistributedConfig, are bit-identical to the same trainers over plain FSDP2. The weights are tied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hugging_face import (
    ARGUMENTS,
    PLUGIN,
    SIZE,
    WORDS,
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
from migrating import block
from torch_ranks import dist, run_torch_ranks, torch

import libodc

trl = pytest.importorskip("trl", reason="trl is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")
Dataset = pytest.importorskip("datasets").Dataset

Options = dict[str, Any]
Tensor = torch.Tensor
LIMIT = 300.0  # seconds; a loaded machine imports and compiles slowly


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


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


def classifier(options: Options) -> tuple[type, Options]:
    return transformers.Trainer, {
        "args": transformers.TrainingArguments(**options),
        "train_dataset": [{"input_ids": ids, "labels": len(ids) % 2} for ids in samples(32)],
        "data_collator": transformers.DataCollatorWithPadding(tokenizer()),
    }


def questions(options: Options) -> tuple[type, Options]:
    kind, made = classifier(options)
    made["train_dataset"] = [
        {"input_ids": ids, "start_positions": 1, "end_positions": len(ids) - 1} for ids in samples(32)
    ]
    return kind, made


def with_a_mean_beside(options: Options) -> tuple[type, Options]:
    """Of a thousandth of the loss."""

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits, wanted = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        whole: Tensor = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum") / num_items_in_batch
        return whole + 1e-3 * logits.logsumexp(-1).mean()

    kind, made = plain_trainer(options)
    return kind, made | {"compute_loss_func": loss}


def below_zero(options: Options) -> tuple[type, Options]:
    """A sum over tokens all the same."""

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        wanted = labels[:, 1:].flatten()
        chosen = outputs["logits"][:, :-1].flatten(0, 1).softmax(-1).gather(1, wanted.clamp(min=0)[:, None])
        return -chosen[wanted != -100].sum() / num_items_in_batch

    kind, made = plain_trainer(options)
    return kind, made | {"compute_loss_func": loss}


class GatheredDivisor(transformers.Trainer):  # type: ignore[misc]
    loss_is_scaled_for_ga = True

    def compute_loss(self, model: Any, inputs: Options, return_outputs: bool = False, **_: Any) -> Any:
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1].flatten(0, 1)
        tokens = self.accelerator.gather((labels[:, 1:] != -100).sum()).sum()
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        return loss * dist.get_world_size() / tokens


def with_a_gathered_divisor(options: Options) -> tuple[type, Options]:
    _, made = plain_trainer(options)
    return GatheredDivisor, made


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
        "args": config(**{"beta": 0.1} | options, bf16=False, num_generations=4, max_completion_length=8),
        "train_dataset": Dataset.from_list([{"prompt": text(ids)} for ids in samples(32)]),
        "reward_funcs": different_words,
    }


def grpo(options: Options) -> tuple[type, Options]:
    return trl.GRPOTrainer, prompts(trl.GRPOConfig, options)


def grpo_of_top_entropies(options: Options) -> tuple[type, Options]:
    return grpo({"top_entropy_quantile": 0.5, **options})


def grpo_of_adaptive_entropy(options: Options) -> tuple[type, Options]:
    return grpo({"use_adaptive_entropy": True, **options})


class GatheredWeight(trl.GRPOTrainer):  # type: ignore[misc]
    def _compute_loss(self, model: Any, inputs: Options) -> Any:
        tokens = self.accelerator.gather(inputs["completion_mask"].sum()).float()
        return super()._compute_loss(model, inputs) * tokens.mean() / tokens.max()


def grpo_with_a_gathered_weight(options: Options) -> tuple[type, Options]:
    return GatheredWeight, grpo(options)[1]


def grpo_of_means(options: Options) -> tuple[type, Options]:
    """TRL's, and one of its `_compute_loss` only."""
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    return GMPOTrainer, prompts(GMPOConfig, options)


MOVING = {"sync_ref_model": True, "ref_model_sync_steps": 1}


def dpo_with_a_moving_reference(options: Options) -> tuple[type, Options]:
    return dpo({**MOVING, **options})


def grpo_with_a_moving_reference(options: Options) -> tuple[type, Options]:
    return grpo({**MOVING, **options})


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


def compare_trainers(rank: int, size: int, folder: Path, way: str, cases: Cases) -> list[str]:
    """Returns the warnings."""
    be_launched(rank, size)
    told: list[str] = []
    for maker, kind in cases.items():
        trained = []
        for over in (None, mixin()):
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
    makers = (dpo, dpo_with_a_moving_reference, grpo_with_a_moving_reference, kto_without_kl, reward, rloo)
    assert not compare_trainers(rank, size, folder, "plugin", {sft: "llama"} | dict.fromkeys(makers, "qwen2"))


def test_trainers_with_the_plugin(models: Path) -> None:
    run_torch_ranks(2, train_with_the_plugin, models, seconds=LIMIT)


def train_long(rank: int, size: int, folder: Path) -> None:
    """30 steps in several epochs, whose last batches are fewer than a step's and, of Trainer and SFT, repeat samples;
    clipped, with a decaying rate of learning."""
    be_launched(rank, size)
    for maker in (plain_trainer, sft, grpo):
        print(maker.__name__)  # shown where the next lines fail
        trained = []
        for over in (None, mixin()):
            with new_process("plugin"), no_warnings():
                options = {"output_dir": str(folder / "out"), "max_steps": 30, "max_grad_norm": 0.5, **PLUGIN}
                if maker is not grpo:  # its batches are groups of answers
                    options |= {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}
                trainer = made(maker, over, load(folder / "qwen2"), options)
                trainer.train()
                trained.append(trainer)
        plain, over_odc = ([line for line in one.state.log_history if "loss" in line] for one in trained)
        assert len(plain) == 30 and plain[-1]["epoch"] > 1
        assert any(line["grad_norm"] > 0.5 for line in plain)
        assert [line["loss"] for line in over_odc] == pytest.approx([line["loss"] for line in plain], rel=1e-6)
        assert_same(*trained)


def test_thirty_steps(models: Path) -> None:
    run_torch_ranks(2, train_long, models, seconds=LIMIT)


def what_the_page_says(rank: int, size: int, folder: Path) -> None:
    """Losses that are collective; a Trainer that gathers the tokens seen."""
    collective = (
        kto,
        grpo_of_top_entropies,
        grpo_of_adaptive_entropy,
        grpo_with_a_gathered_weight,
        with_a_gathered_divisor,
    )
    told = compare_trainers(rank, size, folder, "plugin", dict.fromkeys(collective, "qwen2"))
    with new_process("plugin"), warnings_logged() as warnings:
        options = {"output_dir": str(folder / "out"), "max_steps": 1, "include_num_input_tokens_seen": "all", **PLUGIN}
        made(plain_trainer, mixin(), load(folder / "qwen2"), options).train()
    told += warnings
    assert [line.split()[2] for line in told] == (["collectives,"] * 6 if rank == 0 else [])
    call_back(folder)
    resume_at_the_end(folder)


def call_back(folder: Path) -> None:
    """Why a callback cannot sync."""
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


def resume_at_the_end(folder: Path) -> None:
    """Nothing is left to train, so nothing is attached."""
    for resume_from in (None, str(folder / "done" / "checkpoint-1")):
        with new_process("plugin"):
            options = {"output_dir": str(folder / "done"), "max_steps": 1, "save_strategy": "steps", "save_steps": 1}
            options |= {"per_device_train_batch_size": 8, **PLUGIN}  # one step an epoch
            trainer = made(plain_trainer, mixin(), load(folder / "qwen2"), options)
            trainer.train(resume_from_checkpoint=resume_from)
            assert (trainer.job is None) == (resume_from is not None)


def test_what_the_page_says(models: Path) -> None:
    run_torch_ranks(2, what_the_page_says, models, seconds=LIMIT)


def generate_apart(rank: int, size: int, folder: Path) -> None:
    """Answers of 2 and of 8 tokens: as in lock step, but for the forwards that this adds."""
    be_launched(rank, size)
    for maker in (grpo, rloo):
        print(maker.__name__)  # shown where the next lines fail
        trained, forwards = [], []
        for over in (None, mixin()):
            with new_process("plugin"), no_warnings():
                options = {"output_dir": str(folder / "out"), "max_steps": 3, **PLUGIN}
                trainer = made(maker, over, load(folder / "qwen2"), options)
                trainer.generation_config.max_new_tokens = (2, 8)[rank]
                lengths: list[int] = []
                trainer.model.register_forward_pre_hook(
                    lambda _, __, inputs, lengths=lengths: lengths.append(inputs["input_ids"].shape[1]),
                    with_kwargs=True,
                )
                trainer.train()
                trained.append(trainer)
                counts: list[Any] = [None] * size
                dist.all_gather_object(counts, lengths.count(1))
                forwards.append(counts)
        (plain, other), (over_odc, alone) = forwards
        assert plain == other == alone > 2 * over_odc > 0
        assert_same(*trained)
        assert not isinstance(trainer.model.generate, partial)  # in lock step again, as the job has ended


def test_ranks_generate_apart(models: Path) -> None:
    run_torch_ranks(2, generate_apart, models, seconds=LIMIT)


# ---- uneven counts ----


def scripted(prompts: list[str], trainer: Any) -> Options:
    """Answers that are the same in whatever way their groups are divided over ranks."""
    asked = [[int(word[1:]) for word in prompt.split()] for prompt in prompts]
    answers = []
    for index, prompt in enumerate(asked):
        generator = torch.Generator().manual_seed(4 * sum(prompt) + index % 4)
        length = int(torch.randint(2, 9, (), generator=generator))
        answers.append(torch.randint(3, WORDS, (length,), generator=generator).tolist())
    return {"prompt_ids": asked, "completion_ids": answers, "logprobs": None}


def no_signal_in_a_third(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    without = [int(prompt.split()[0][1:]) % 3 == 0 for prompt in prompts]
    return [0.0 if none else reward for none, reward in zip(without, different_words(completions), strict=True)]


def grpo_of_scripted_answers(options: Options) -> tuple[type, Options]:
    kind, made = grpo({"beta": 0.0, **options})
    return kind, made | {"rollout_func": scripted, "reward_funcs": no_signal_in_a_third}


def split_as_printed(inputs: Options, tokens: int) -> list[Options]:
    names: Options = {}
    exec(block("Trainer and TRL", "python", 1).replace("4096", str(tokens)), names)
    parts: list[Options] = names["split"](inputs)
    return parts


def split_answers(inputs: Options, most: int) -> list[Options]:
    """Without those that have no signal."""
    rows = inputs["advantages"].nonzero().flatten()
    parts = rows.split(most) if len(rows) else ()
    return [{name: one[part] if one.dim() else one for name, one in inputs.items()} for part in parts]


class Split:
    """All rows at once on rank 0, one at a time on rank 1."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, inputs: Options) -> list[Options]:
        split = split_answers if "advantages" in inputs else split_as_printed
        parts = split(inputs, 4096 if dist.get_rank() == 0 else 1)
        self.counts.append(len(parts))
        return parts


UNEVEN = {plain_trainer: 3, below_zero: 3, sft: 3, grpo_of_scripted_answers: 4}  # rows of a rank


def train_on(folder: Path, maker: Any, over: Any, rows: int, **options: Any) -> tuple[list[float], dict[str, Any]]:
    options |= {"output_dir": str(folder / "out"), "optim": "sgd", "max_steps": 10, "dataloader_drop_last": True}
    options |= {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 1}
    trainer = made(maker, over, load(folder / "qwen2"), options)
    trainer.train()
    numbers = [(line["loss"], line["grad_norm"]) for line in trainer.state.log_history if "loss" in line]
    return [one for pair in numbers for one in pair], full_parameters(trainer.model)


def train_alone(rank: int, size: int, folder: Path, results: Path) -> None:
    with new_process("alone"):
        torch.save([train_on(folder, maker, None, 2 * rows) for maker, rows in UNEVEN.items()], results)


def refuse_means(folder: Path) -> None:
    """Losses of which parts are no share."""
    quiet, routed = (  # TRL adds the routers' loss to both, Trainer to the latter
        transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**SIZE, num_experts=4, output_router_logits=told))
        for told in (False, True)
    )
    plain, out = load(folder / "qwen2"), {"output_dir": str(folder / "out"), **PLUGIN}
    classes = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "qwen2", num_labels=2)
    whole = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    cases: list[tuple[Any, Any, Options, str]] = [
        (classifier, classes, whole, "rows"),
        (questions, transformers.AutoModelForQuestionAnswering.from_pretrained(folder / "qwen2"), whole, "rows"),
        (with_a_mean_beside, plain, whole, "rows"),
        (with_a_gathered_divisor, plain, whole, "rows"),
        (reward, load(folder / "qwen2", scores=True), whole, "rows"),
        (dpo, plain, {}, "rows"),
        (grpo, plain, {"loss_type": "grpo"}, "rows"),
        (grpo_of_means, plain, {"beta": 0.0}, "rows"),
        (grpo_with_a_gathered_weight, plain, {"beta": 0.0}, "rows"),
        (grpo, plain, {"beta": 0.0, "entropy_coef": 0.1}, "tokens"),
        (grpo, plain, {"beta": 0.0, "use_adaptive_entropy": True}, "tokens"),
        (grpo, quiet, {"beta": 0.0}, "tokens"),
        (sft, quiet, {}, "tokens"),
        (plain_trainer, routed, {}, "tokens"),
    ]
    for maker, model, options, what in cases:
        print(maker.__name__, type(model).__name__, options)  # shown where the next lines fail
        # A rank that has come first ends the other's gather, with its own reason.
        refused = pytest.raises((AssertionError, libodc.AbortedError), match=f"a mean over {what} cannot be cut")
        with new_process("plugin"), refused:
            made(maker, mixin(Split()), model, out | options).train()
    with new_process("plugin"), pytest.raises(AssertionError, match="a quantile over all ranks cannot be cut"):
        made(grpo, mixin(Split()), plain, out | {"beta": 0.0, "top_entropy_quantile": 0.5}).train()
    with new_process("plugin"), pytest.raises(AssertionError, match="the count would be this rank's alone"):
        made(plain_trainer, mixin(Split()), plain, out | {"average_tokens_across_devices": False}).train()


def train_unevenly(rank: int, size: int, folder: Path, results: Path) -> None:
    """As one process. An exception on one rank ends the other's wait."""
    be_launched(rank, size)
    for (maker, rows), (numbers, parameters) in zip(UNEVEN.items(), torch.load(results), strict=True):
        print(maker.__name__)  # shown where the next lines fail
        split = Split()
        with new_process("plugin"), no_warnings():
            found, trained = train_on(folder, maker, mixin(split), rows, **PLUGIN)
        counts: list[Any] = [None] * size
        dist.all_gather_object(counts, split.counts)
        print(counts)
        assert len(counts[0]) == 10 and sum(a != b for a, b in zip(*counts, strict=True)) > 5
        assert maker is not grpo_of_scripted_answers or 0 in counts[0] + counts[1]
        assert found == pytest.approx(numbers, rel=1e-5, abs=1e-6)
        for name, parameter in trained.items():
            torch.testing.assert_close(parameter, parameters[name], rtol=1e-5, atol=1e-6, msg=name)

    refuse_means(folder)

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


def test_uneven_counts(tmp_path: Path, models: Path) -> None:
    run_torch_ranks(1, train_alone, models, tmp_path / "alone", seconds=LIMIT)
    run_torch_ranks(2, train_unevenly, models, tmp_path / "alone", seconds=LIMIT)


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


def test_adapters(models: Path) -> None:
    run_torch_ranks(2, train_adapters, models, seconds=LIMIT)


# ---- models that are sharded as they are loaded ----


def use_loaded_models(rank: int, size: int, folder: Path) -> None:
    makers = (sft, dpo, reward, grpo)
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


def test_models_sharded_as_they_are_loaded(models: Path) -> None:
    run_torch_ranks(2, use_loaded_models, models, seconds=LIMIT)
