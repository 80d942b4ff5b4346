# SPDX-License-Identifier: Apache-2.0
"""MIGRATING.md's `accelerate launch` on whole scripts, one with Accelerate's loop and one with a Trainer, changed as
the page says: several epochs of uneven batches, accumulation, clipping, a schedule, evaluation, a checkpoint and its
resumption; the Trainer in mixed precision. Equal to the same scripts over plain FSDP2."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from migrating import applied, block, patched

pytest.importorskip("accelerate", reason="accelerate is not installed")

EPOCHS = range(8)
STEPS = 4 * len(EPOCHS)
LIMIT = 300.0  # seconds; a loaded machine imports slowly
# 26 samples: seven batches on each rank, of which even_batches fills the last, so an epoch's fourth step has one.
SCRIPT = """
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

{cpu}
from accelerate import Accelerator, DataLoaderConfiguration

folder, name, begin, end = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(13, 31), nn.Linear(31, 13)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers, self.last = nn.Linear(5, 13), nn.Sequential(Layer(), Layer()), nn.Linear(13, 3)

    def forward(self, x):
        return self.last(self.layers(self.first(x)))


def batches(count, seed, **order):
    draw = torch.Generator().manual_seed(seed)
    data = torch.utils.data.TensorDataset(torch.randn(count, 5, generator=draw), torch.randn(count, 3, generator=draw))
    return torch.utils.data.DataLoader(data, batch_size=2, generator=draw, **order)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


torch.manual_seed(0)
by_epoch = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(gradient_accumulation_steps=2, dataloader_config=by_epoch)
model, loader, held_out = Model(), batches(26, 1, shuffle=True), batches(7, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 64)
model, optimizer, loader, held_out, schedule = accelerator.prepare(model, optimizer, loader, held_out, schedule)
if begin > 0:
    accelerator.load_state(folder / "checkpoint")
losses, norms, evaluations = [], [], []
for epoch in range(begin, end):
    loader.set_epoch(epoch)
    total = 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            total = total + loss.detach()
            if accelerator.sync_gradients:
                losses.append(accelerator.reduce(total, "sum").item())
                total = 0.0
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    with torch.no_grad():
        found = [accelerator.gather_for_metrics((model(x) - y).square().sum(1)) for x, y in held_out]
    model.reshard()  # FSDP2 leaves the root unsharded
    evaluations.append(torch.cat(found).mean().item())
    assert torch.cat(found).shape == (7,)
    if epoch == 4:
        accelerator.save_state(folder / "checkpoint")
whole = {{name: one.full_tensor().tolist() for name, one in model.named_parameters()}}
if accelerator.is_main_process:
    assert accelerator.state.fsdp_plugin.fsdp_version == 2
    results = {{"losses": losses, "norms": norms, "evaluations": evaluations, "parameters": whole}}
    (folder / f"{{name}}.json").write_text(json.dumps(results))
"""

# The same batches; a checkpoint within the fifth epoch.
TRAINER = """
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

{cpu}
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments

folder, name, resume_from = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


class Counter(TrainerCallback):
    steps = 0

    def on_step_end(self, *_, **__):
        self.steps += 1


config = Qwen2Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
)
torch.manual_seed(0)
model = Qwen2ForCausalLM(config)
words = torch.randint(3, 64, (33, 8), generator=torch.Generator().manual_seed(1))
dataset, held_out = ([{{"input_ids": row, "labels": row}} for row in rows] for rows in (words[:26], words[26:]))
args = TrainingArguments(
    output_dir=folder / name, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=8,
    learning_rate=1e-2, max_grad_norm=0.5, warmup_steps=4, logging_steps=1, eval_strategy="steps", eval_steps=6,
    save_strategy="steps", save_steps=18, load_best_model_at_end=True, report_to=[], disable_tqdm=True, use_cpu=True,
    accelerator_config={{"use_configured_state": True}},
)
trainer = Trainer(model, args, train_dataset=dataset, eval_dataset=held_out)
counter = Counter()
trainer.add_callback(counter)
plugin = trainer.accelerator.state.fsdp_plugin  # sums in f32: gloo adds bf16 as such, and ODC in f32
plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, reduce_dtype=torch.float32)
trainer.train(resume_from_checkpoint=str(folder / resume_from) if resume_from else None)
whole = {{name: one.full_tensor().tolist() for name, one in trainer.model.named_parameters()}}
if trainer.is_world_process_zero():
    assert plugin.fsdp_version == 2 and plugin.mixed_precision_policy.param_dtype == torch.bfloat16
    assert isinstance(trainer.model, FSDPModule)
    log = trainer.state.log_history
    results = {{
        "steps": counter.steps,
        "losses": [line["loss"] for line in log if "loss" in line],  # of the checkpoint's steps, too
        "norms": [line["grad_norm"] for line in log if "grad_norm" in line],
        "evaluations": [line["eval_loss"] for line in log if "eval_loss" in line],
        "parameters": whole,
    }}
    (folder / f"{{name}}.json").write_text(json.dumps(results))
"""

# Runs scripts one after the other in the same ranks, as importing takes longer than training.
DRIVER = """
import runpy
import sys

import torch
from accelerate.state import AcceleratorState, GradientState

for words in {runs}:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
    AcceleratorState._reset_state(reset_partial_state=True)  # what Accelerate keeps in a process
    GradientState._reset_state()
torch.distributed.destroy_process_group()
"""


def launched(folder: Path, code: str, odc_code: str, runs: dict[str, list[str]], *options: str) -> list[dict[str, Any]]:
    """By the page's line: the runs, with their arguments, of which the first is without ODC. Returns their results."""
    for name in runs:
        (folder / f"{name}.py").write_text(code if name == "plain" else "from libodc.torch import fsdp2\n" + odc_code)
    words = [[f"{name}.py", str(folder), name, *arguments] for name, arguments in runs.items()]
    (folder / "train.py").write_text(DRIVER.format(runs=words))
    line = shlex.split(block("Accelerate", "sh").strip())
    line[2:2] = ["--main_process_port", "0", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", *options]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
    }
    for _ in range(3):
        done = subprocess.run(
            line,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT * len(runs),
        )
        # torch's gloo threads sometimes take the interpreter's lock while it ends, also without ODC.
        if done.returncode == 0 or "terminate called without an active exception" not in done.stdout:
            break
    assert done.returncode == 0, done.stdout
    assert "ran between the first forward" not in done.stdout, done.stdout  # no collective in a minibatch
    return [json.loads((folder / f"{name}.json").read_text()) for name in runs]


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]


def assert_all(plain: dict[str, Any], over_odc: dict[str, Any], resumed: dict[str, Any]) -> None:
    assert len(plain["losses"]) == STEPS and sum(plain["losses"][-4:]) < sum(plain["losses"][:4])
    assert max(plain["norms"]) > 0.5  # some are clipped
    assert len(plain["evaluations"]) > 3
    for what in ("losses", "norms", "evaluations"):
        assert over_odc[what] == pytest.approx(plain[what], rel=1e-6), what
        assert resumed[what] == over_odc[what][-len(resumed[what]) :], what
    assert flat(over_odc["parameters"]) == pytest.approx(flat(plain["parameters"]), rel=1e-6, abs=1e-6)
    assert resumed["parameters"] == over_odc["parameters"]


def test_a_loop_trains_and_resumes_as_without_odc(tmp_path: Path) -> None:
    code = SCRIPT.format(cpu=block("Accelerate", "python", 1).strip())
    begin, middle, end = (str(epoch) for epoch in (EPOCHS.start, 5, EPOCHS.stop))
    runs = {"plain": [begin, end], "over ODC": [begin, end], "resumed": [middle, end]}
    options = ("--fsdp_transformer_layer_cls_to_wrap", "Layer")
    results = launched(tmp_path, code, patched(block("Accelerate", "diff", 1), code), runs, *options)
    assert_all(*results)
    assert len(results[2]["losses"]) == STEPS - 5 * 4


def test_a_trainer_trains_and_resumes_as_without_odc(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    code = TRAINER.format(cpu=block("Accelerate", "python", 1).strip())
    odc_code = block("Trainer and TRL", "python") + applied(block("Trainer and TRL", "diff"), code)
    runs = {"plain": [""], "over ODC": [""], "resumed": ["over ODC/checkpoint-18"]}
    options = ("--fsdp_transformer_layer_cls_to_wrap", "Qwen2DecoderLayer", "--mixed_precision", "bf16")
    results = launched(tmp_path, code, odc_code, runs, *options)
    assert_all(*results)
    assert [one["steps"] for one in results] == [STEPS, STEPS, STEPS - 18]
