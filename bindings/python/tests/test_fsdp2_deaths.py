# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, raises, leaves or comes late: the error of every other rank names it, and none waits forever."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from torch_ranks import dist, torch

import libodc
from libodc.torch import fsdp2

nn = torch.nn
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard

LAUNCHERS = {
    "odc run": [str(Path(__file__).parents[3] / "build/release/tools/odc"), "run", "-n", "2", sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


def make(size: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: Any) -> None:
    model(torch.ones(2, 4)).sum().backward()


def _survive(rank: int, size: int, job: str, fn: Callable[..., None], store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model, optimizer = make(size)
    fn(rank, size, model, optimizer)
    # A process group that has lost a rank cannot be destroyed properly.
    sys.stdout.flush()
    os._exit(0)


def survive(size: int, fn: Callable[..., None], mortal: tuple[int, ...] = ()) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(size, _survive, fn, os.path.join(folder, "store"), mortal=mortal)


# ---- deaths and exceptions ----


def killed(rank: int, size: int, model: Any, optimizer: Any) -> None:
    job = fsdp2.attach(model, optimizer, timeout=60)
    if rank == 1:
        backward(model)
        model[0].register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        backward(model)
    with pytest.raises(libodc.PeerLostError, match=r"rank 1 .* (died|is lost)"):
        backward(model)  # between hosts this may need it already
        job.sync_gradients()


def test_a_death_inside_a_minibatch_is_named() -> None:
    survive(3, killed, mortal=(1,))


def raised(rank: int, size: int, model: Any, optimizer: Any) -> None:
    with pytest.raises(ValueError if rank == 1 else libodc.AbortedError) as caught:
        with fsdp2.attach(model, optimizer, timeout=60) as job:
            for _ in range(3):
                if rank == 1:
                    raise ValueError("the loss is not finite")
                backward(model)
            job.sync_gradients()
    if rank != 1:
        assert "rank 1 (" in str(caught.value)
        assert "it raised ValueError: the loss is not finite" in str(caught.value)


def test_an_exception_inside_a_minibatch_is_named() -> None:
    survive(3, raised)


def raised_in_backward(rank: int, size: int, model: Any, optimizer: Any) -> None:
    job = fsdp2.attach(model, optimizer, timeout=60)
    if rank == 1:
        with pytest.raises(libodc.AbortedError, match=r"rank 0 .* it raised KeyError: 'x'"):
            job.sync_gradients()
        return
    with pytest.raises(KeyError):
        with job:
            output = model(torch.ones(2, 4)).sum()
            output.register_hook(lambda _: {}["x"])
            output.backward()


def test_an_exception_inside_a_backward_is_named() -> None:
    survive(2, raised_in_backward)


class Wordless(Exception):
    """Its text cannot be obtained: str() raises `raised`."""

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised


def raised_without_words(rank: int, size: int, model: Any, optimizer: Any) -> None:
    shown: list[BaseException] = []
    sys.excepthook = lambda kind, error, trace: shown.append(error)
    job = fsdp2.attach(model, optimizer, timeout=60)
    if rank == 1:
        first, second = Wordless(KeyboardInterrupt()), Wordless(KeyError("x"))
        with pytest.raises(KeyboardInterrupt):
            sys.excepthook(Wordless, first, None)
        sys.excepthook(Wordless, second, None)
        assert shown == [first, second]
        return
    with pytest.raises(libodc.AbortedError, match=r"rank 1 .* it raised Wordless: without a message"):
        backward(model)
        job.sync_gradients()


def test_an_exception_without_words_is_told_and_shown() -> None:
    survive(2, raised_without_words)


def interrupted_in_words(rank: int, size: int, model: Any, optimizer: Any) -> None:
    job = fsdp2.attach(model, optimizer, timeout=60)
    if rank == 1:
        with pytest.raises(KeyboardInterrupt), job:
            raise Wordless(KeyboardInterrupt())
        return
    with pytest.raises(libodc.PeerLostError, match=r"rank 1 .* left in minibatch 0"):
        job.sync_gradients()


def test_a_block_whose_abort_is_interrupted_ends_its_job() -> None:
    survive(2, interrupted_in_words)


SCRIPT = """
import os, sys, torch, torch.distributed as dist
sys.path.insert(0, {tests!r})
import libodc.torch.fsdp2
from test_fsdp2_deaths import backward, make

rank = int(os.environ.get("RANK", os.environ.get("ODC_RANK")))
size = int(os.environ.get("WORLD_SIZE", os.environ.get("ODC_SIZE")))
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=size)
model, optimizer = make(size)
job = libodc.torch.fsdp2.attach(model, optimizer, timeout=60)
for minibatch in range(3):
    backward(model)
    if minibatch == 1 and rank == 1 and sys.argv[2] == "in the minibatch":
        raise ValueError("a bad sample")
    job.sync_gradients()
    if minibatch == 1 and rank == 1 and sys.argv[2] == "before the clip":
        os._exit(3)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
job.close()
dist.destroy_process_group()
os.write(1, f"rank {{rank}} ended\\n".encode())  # at once, as ranks share the output
"""


def launch(launcher: str, tmp_path: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = LAUNCHERS[launcher]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not built")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(script), str(tmp_path / "store"), how],
        capture_output=True,
        text=True,
        timeout=400,
        env=environment,
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_end_when_one_fails(launcher: str, tmp_path: Path) -> None:
    for how in ("in the minibatch", "before the clip"):  # none fails in test_minimal_fsdp2.py
        folder = tmp_path / how.replace(" ", "-")
        folder.mkdir()
        ended = launch(launcher, folder, how)
        output = ended.stdout + ended.stderr
        assert ended.returncode != 0 and "ended" not in output, output
        if how == "in the minibatch":
            assert "ValueError: a bad sample" in output, output


# ---- late ranks ----


class Teller(logging.Handler):
    """Keeps log messages and wakes those who wait for them, so that the test does not depend on time."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if " has not arrived in minibatch 0" in record.getMessage():
            self.lines.append(record.getMessage())
            self.store.set(f"logged {len(self.lines)}", "1")


def late(rank: int, size: int, model: Any, optimizer: Any) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        teller = Teller(store)
        logging.getLogger("libodc").addHandler(teller)
        logging.getLogger("libodc").setLevel(logging.INFO)
    job = fsdp2.attach(model, optimizer, timeout=60)
    backward(model)
    waited = job.context.stats()
    if rank == 1:
        store.wait(["logged 2"])
    report = job.sync_gradients()
    now = job.context.stats()
    assert report.waited_s * 1e9 >= now.sync_wait_ns - waited.sync_wait_ns + waited.publish_wait_ns
    if rank == 0:
        assert all("odc info rank=0/2 " in line and "rank 1 (" in line for line in teller.lines)
        assert report.slowest == 1 and report.waited_s >= 0.3
    optimizer.step()
    job.close()


def test_a_long_wait_is_logged_and_goes_on() -> None:
    survive(2, late)


def absent(rank: int, size: int, model: Any, optimizer: Any) -> None:
    store = dist.distributed_c10d._get_default_store()
    job = fsdp2.attach(model, optimizer, timeout=1.0)
    if rank == 1:
        store.wait(["over"])
        return
    with pytest.raises(libodc.MissedDeadlineError, match=r"rank 1 .* has not arrived in minibatch 0"):
        job.sync_gradients()
    store.set("over", "1")


def test_a_wait_ends_at_the_deadline() -> None:
    survive(2, absent)


def leaves(rank: int, size: int, model: Any, optimizer: Any) -> None:
    store = dist.distributed_c10d._get_default_store()
    job = fsdp2.attach(model, optimizer, timeout=60)
    if rank == 1:
        job.remove()
        store.set("left", "1")
        return
    store.wait(["left"])
    if "ODC_TEST_HOSTS" not in os.environ:
        with torch.no_grad():
            model(torch.ones(2, 4))  # within a host what was published can still be read
    with pytest.raises(libodc.PeerLostError, match=r"rank 1 .* left in minibatch 0"):
        job.sync_gradients()


def test_a_rank_whose_job_was_removed_is_named() -> None:
    survive(2, leaves)


def closes(rank: int, size: int, model: Any, optimizer: Any) -> None:
    """Rank 0 is done while rank 1 still evaluates."""
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        backward(model)
        job.sync_gradients()
        optimizer.step()
        if rank == 1:
            with torch.no_grad():
                for _ in range(20):
                    model(torch.ones(2, 4))
    output = model(torch.ones(2, 4))  # plain FSDP2 again
    assert torch.isfinite(output).all()


def test_close_waits_for_those_who_still_evaluate() -> None:
    survive(2, closes)
