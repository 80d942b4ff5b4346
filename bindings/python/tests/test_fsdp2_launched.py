# SPDX-License-Identifier: Apache-2.0
"""MIGRATING.md's `accelerate launch` on whole scripts, one with Accelerate's loop and one with a Trainer or TRL's,
changed as the page says: several epochs of uneven batches, accumulation, clipping, a schedule, evaluation, a checkpoint
and its resumption; the trainers in mixed precision. Equal to the same scripts over plain FSDP2."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hugging_face import save_models, tokenizer
from migrating import applied, before, block, patched

EPOCHS = range(8)
STEPS = 4 * len(EPOCHS)
LEAVING = Path(__file__).parents[1] / "examples" / "train"  # how the examples end, too
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

# The same batches; the Trainer's checkpoint is within the fifth epoch.
TRAINER = """
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

{cpu}
from transformers import AutoModelForCausalLM, TrainerCallback
{imports}

folder, name, resume_from = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
output_dir = (folder / resume_from).parent if resume_from else folder / name


class Counter(TrainerCallback):
    steps = 0

    def on_step_end(self, *_, **__):
        self.steps += 1


model = AutoModelForCausalLM.from_pretrained(folder / "qwen2")
words = torch.randint(3, 64, (33, 8), generator=torch.Generator().manual_seed(1)).tolist()
dataset, held_out = ({dataset} for rows in (words[:26], words[26:]))
args = Arguments(
    output_dir=output_dir, per_device_train_batch_size=2, gradient_accumulation_steps=2, {arguments},
    learning_rate=1e-2, max_grad_norm=0.5, warmup_steps=4, logging_steps=1, eval_strategy="steps",
    save_strategy="steps", load_best_model_at_end=True, report_to=[], disable_tqdm=True, use_cpu=True,
    accelerator_config={{"use_configured_state": True}},
)
trainer = {call}
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

# For each class: the steps of the program above, the steps at its checkpoint, and the parts that it is made of.
KINDS = {
    "Trainer": (
        STEPS,
        18,
        {
            "imports": "from transformers import Trainer, TrainingArguments as Arguments",
            "dataset": '[{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in rows]',
            "arguments": f"num_train_epochs={len(EPOCHS)}, eval_steps=6, save_steps=18",
        },
    ),
    "SFTTrainer": (
        6,
        4,
        {
            "imports": "from datasets import Dataset\nfrom trl import SFTConfig as Arguments, SFTTrainer",
            "dataset": 'Dataset.from_dict({"input_ids": rows})',
            "arguments": "max_steps=6, eval_steps=2, save_steps=4",
        },
    ),
    "GRPOTrainer": (
        6,
        4,
        {
            "imports": "from datasets import Dataset\nfrom transformers import PreTrainedTokenizerFast\n"
            "from trl import GRPOConfig as Arguments, GRPOTrainer",
            "dataset": 'Dataset.from_dict({"prompt": [" ".join(f"w{word}" for word in row) for row in rows]})',
            "arguments": "max_steps=6, eval_steps=2, save_steps=4, "
            "beta=0.1, num_generations=4, max_completion_length=8",
        },
    ),
}
# Instead of the page's, for GRPOTrainer. AutoTokenizer would make a tokenizer of Qwen2's kind, which has no such words.
GRPO_CALL = """(
    model, lambda completions, **_: [float(len(set(one.split()))) for one in completions], args, train_dataset=dataset,
    eval_dataset=held_out, processing_class=PreTrainedTokenizerFast.from_pretrained(folder / "qwen2")
)"""

# Runs scripts one after the other in the same ranks, as importing takes longer than training.
DRIVER = """
import runpy
import sys

import torch
from accelerate.state import AcceleratorState, GradientState
from leaving import leave

for words in {runs}:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
    AcceleratorState._reset_state(reset_partial_state=True)  # what Accelerate keeps in a process
    GradientState._reset_state()
torch.distributed.destroy_process_group()
leave(0)
"""


def launched(folder: Path, runs: dict[str, tuple[str, list[str]]], *options: str) -> list[dict[str, Any]]:
    """By the page's line: runs of scripts with their arguments. Returns their results."""
    for name, (code, _) in runs.items():
        (folder / f"{name}.py").write_text(code)
    words = [[f"{name}.py", str(folder), name, *arguments] for name, (_, arguments) in runs.items()]
    (folder / "train.py").write_text(DRIVER.format(runs=words))
    line = shlex.split(block("Accelerate", "sh").strip())
    line[2:2] = ["--main_process_port", "0", *options]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(LEAVING),
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        line,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT * len(runs),
    )
    assert done.returncode == 0, done.stdout
    assert "ran between the first forward" not in done.stdout, done.stdout  # no collective in a minibatch
    return [json.loads((folder / f"{name}.json").read_text()) for name in runs]


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]


def assert_trained(plain: dict[str, Any]) -> None:
    assert len(plain["losses"]) == STEPS and sum(plain["losses"][-4:]) < sum(plain["losses"][:4])
    assert max(plain["norms"]) > 0.5  # some are clipped
    assert len(plain["evaluations"]) > 3


def assert_equal(plain: dict[str, Any], over_odc: dict[str, Any], resumed: dict[str, Any]) -> None:
    for what in ("losses", "norms", "evaluations"):
        assert over_odc[what] == pytest.approx(plain[what], rel=1e-6), what
        assert resumed[what] == over_odc[what][-len(resumed[what]) :], what
    assert flat(over_odc["parameters"]) == pytest.approx(flat(plain["parameters"]), rel=1e-6, abs=1e-6)
    assert resumed["parameters"] == over_odc["parameters"]


def test_a_loop_trains_and_resumes_as_without_odc(tmp_path: Path) -> None:
    code = SCRIPT.format(cpu=block("Accelerate", "python", 1).strip())
    odc_code = "from libodc.torch import fsdp2\n" + patched(block("Accelerate", "diff", 1), code)
    begin, middle, end = (str(epoch) for epoch in (EPOCHS.start, 5, EPOCHS.stop))
    runs = {"plain": (code, [begin, end]), "over ODC": (odc_code, [begin, end]), "resumed": (odc_code, [middle, end])}
    results = launched(tmp_path, runs, "--fsdp_transformer_layer_cls_to_wrap", "Layer")
    assert_trained(results[0])
    assert_equal(*results)
    assert len(results[2]["losses"]) == STEPS - 5 * 4


def test_trainers_train_and_resume_as_without_odc(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed")
    save_models(tmp_path, tied=False)
    tokenizer().save_pretrained(tmp_path / "qwen2")  # TRL's trainers look for it beside the model
    runs = {}
    for kind, (_, saved, parts) in KINDS.items():
        diff = re.sub(r"\bTrainer\b", kind, block("Trainer and TRL", "diff"))
        if kind == "GRPOTrainer":
            call = "(model, args, train_dataset=dataset, eval_dataset=held_out)"
            diff = diff.replace(call, " ".join(GRPO_CALL.split()))
        call = before(diff).partition(" = ")[2].strip()
        code = TRAINER.format(cpu=block("Accelerate", "python", 1).strip(), call=call, **parts)
        odc_code = block("Trainer and TRL", "python") + applied(diff, code)
        runs |= {kind: (code, [""]), f"{kind} over ODC": (odc_code, [""])}
        runs[f"{kind} resumed"] = odc_code, [f"{kind} over ODC/checkpoint-{saved}"]
    options = ("--fsdp_transformer_layer_cls_to_wrap", "Qwen2DecoderLayer", "--mixed_precision", "bf16")
    results = dict(zip(runs, launched(tmp_path, runs, *options), strict=True))
    assert_trained(results["Trainer"])
    for kind, (steps, saved, _) in KINDS.items():
        print(kind)  # shown where the next lines fail
        of_kind = [results[f"{kind}{which}"] for which in ("", " over ODC", " resumed")]
        assert [one["steps"] for one in of_kind] == [steps, steps, steps - saved]
        assert min(of_kind[0]["norms"]) > 0
        assert_equal(*of_kind)
