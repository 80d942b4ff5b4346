# SPDX-License-Identifier: Apache-2.0
"""MIGRATING.md's `accelerate launch` on a whole script, changed as the page says: several epochs of uneven batches,
accumulation, clipping, a schedule, evaluation, a checkpoint and its resumption. Equal to the same script over plain
FSDP2."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from migrating import block, patched

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
accelerator.end_training()
"""


def script(diff: str | None) -> str:
    plain = SCRIPT.format(cpu=block("Accelerate", "python", 1).strip())
    return plain if diff is None else "from libodc.torch import fsdp2\n" + patched(diff, plain)


def launched(folder: Path, name: str, epochs: range, precision: str = "no") -> dict[str, Any]:
    """By the page's line."""
    diff = None if name.startswith("plain") else block("Accelerate", "diff", 1)
    (folder / "train.py").write_text(script(diff))
    words = shlex.split(block("Accelerate", "sh").strip())
    words[2:2] = ["--main_process_port", "0", "--mixed_precision", precision]
    words[2:2] = ["--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "Layer"]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder),
    }
    for _ in range(3):
        done = subprocess.run(
            [*words, str(folder), name, str(epochs.start), str(epochs.stop)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
        # torch's gloo threads sometimes take the interpreter's lock while it ends, also without ODC.
        if done.returncode == 0 or "terminate called without an active exception" not in done.stdout:
            break
    assert done.returncode == 0, done.stdout
    assert "ran between the first forward" not in done.stdout, done.stdout  # no collective in a minibatch
    results: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return results


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]


def assert_near(mine: dict[str, Any], theirs: dict[str, Any], apart: float) -> None:
    for what in ("losses", "norms", "evaluations"):
        assert mine[what] == pytest.approx(theirs[what], rel=apart), what
    assert flat(mine["parameters"]) == pytest.approx(flat(theirs["parameters"]), rel=apart, abs=apart)


def test_a_script_trains_and_resumes_as_without_odc(tmp_path: Path) -> None:
    plain = launched(tmp_path, "plain", EPOCHS)
    assert len(plain["losses"]) == STEPS and sum(plain["losses"][-4:]) < sum(plain["losses"][:4])
    assert max(plain["norms"]) > 0.5  # some are clipped
    over_odc = launched(tmp_path, "odc", EPOCHS)
    assert_near(over_odc, plain, 1e-6)
    resumed = launched(tmp_path, "resumed odc", EPOCHS[5:])
    for what in ("losses", "norms", "evaluations"):
        assert resumed[what] == over_odc[what][-len(resumed[what]) :], what
    assert len(resumed["losses"]) == STEPS - 5 * 4 and resumed["parameters"] == over_odc["parameters"]


def test_mixed_precision(tmp_path: Path) -> None:
    """FSDP2 over gloo adds gradients in bf16, and ODC in f32."""
    plain, over_odc = (launched(tmp_path, name, EPOCHS[:2], precision="bf16") for name in ("plain", "odc"))
    assert_near(over_odc, plain, 2e-2)
