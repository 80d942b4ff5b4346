# SPDX-License-Identifier: Apache-2.0
"""What libodc.torch.fsdp2 supports, by tests: `python support.py` runs them and writes docs/fsdp2.md's table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "fsdp2.md"
BEGIN, END = "<!-- written by bindings/python/tests/support.py -->\n", "<!-- end of support.py's table -->\n"

_CONFIGURATION = "test_fsdp2_configurations.py::test_configuration"
_REFUSALS = "test_fsdp2_misuse.py::test_refusals"

TRAINED: dict[str, list[str]] = {
    "`fully_shard` per block, nested, of the root only, without the root, of several modules together": [
        f"{_CONFIGURATION}[{name}-{size}]"
        for size in (1, 3)
        for name in ("blocks", "nested", "root only", "without root", "two modules in a group")
    ],
    "1, 2, 3 and 4 ranks, uneven counts, none at all": ["test_fsdp2_equal.py"],
    "dimensions not divisible by the ranks, shards of no element; division by columns": [
        f"{_CONFIGURATION}[{name}-3]" for name in ("blocks", "columns")
    ],
    "`reshard_after_forward` True, False; no resharding after backward; prefetching": [
        f"{_CONFIGURATION}[{name}-3]" for name in ("blocks", "kept after forward", "kept after backward", "prefetching")
    ],
    "activation checkpointing (wrapper, function, reentrant)": [
        f"{_CONFIGURATION}[{name}-3]" for name in ("checkpointed", "recomputed", "recomputed by reentrance")
    ],
    "`torch.compile` per block, also checkpointed, and of the optimizer's step": [
        "test_fsdp2_configurations.py::test_compiled",
        "test_fsdp2_configurations.py::test_compiled_step",
    ],
    "mixed precision: parameters as bf16, f16, f32, f64; reduction in f16, f32, f64": ["test_fsdp2_types.py"],
    "tied weights; modules called twice; several backwards": [
        f"{_CONFIGURATION}[{name}-3]" for name in ("tied", "called twice", "two backwards")
    ],
    "a parameter in several groups: tied after `fully_shard`, as transformers' `DistributedConfig` does": [
        "test_fsdp2_tied.py",
        "test_fsdp2_libraries.py::test_tied_weights_as_transformers_shards_them",
    ],
    "frozen parameters, quantised ones; LoRA over a frozen bf16 base": [
        f"{_CONFIGURATION}[frozen-3]",
        f"{_CONFIGURATION}[quantised-3]",
        "test_fsdp2_types.py::test_types[f32 beside frozen bf16-3]",
    ],
    "unused parameters, others on each rank": ["test_fsdp2_gradients.py::test_unused_parameters"],
    "`set_requires_gradient_sync`, in another rhythm on each rank": ["test_fsdp2_gradients.py::test_pending_gradients"],
    "CPU offload (`pin_memory=False` without an accelerator)": [f"{_CONFIGURATION}[offloaded-3]"],
    "tensor parallelism inside; a mesh of some of the ranks": [
        "test_fsdp2_configurations.py::test_tensor_parallelism_inside",
        "test_fsdp2_configurations.py::test_a_mesh_of_some_ranks",
    ],
    "all-gather extensions (`fsdp_pre_all_gather`)": ["test_fsdp2_extension.py"],
    "dropping a minibatch on all ranks (out of memory in a backward, a loss that is not finite)": [
        "test_fsdp2_given_up.py"
    ],
    "gradient scaling, skipped steps": ["test_fsdp2_jobs.py::test_skipped_steps"],
    "several optimizers, wrapped ones; averaging with `editing()`, clamping with `publish()`": [
        "test_fsdp2_jobs.py::test_rule"
    ],
    "several jobs at once (actor, critic, reference); `job.remove()`": ["test_fsdp2_lifetime.py"],
    "generating with parameters gathered once (`unsharded`); refreshing a reference from its policy": [
        "test_fsdp2_whole.py"
    ],
    "evaluation between steps": ["test_fsdp2_jobs.py::test_evaluation_between_steps"],
    "`state_dict`, DCP; resumption with another number of ranks": ["test_fsdp2_checkpoint.py"],
    "transformers 5.23 Qwen2 and Llama, packed and padded": ["test_fsdp2_libraries.py::test_transformers"],
    "Accelerate 1.15's loop with its FSDP2 plugin, and around `fully_shard`; tied weights; bf16, fp16, float8": [
        "test_fsdp2_accelerate.py"
    ],
    "scripts under `accelerate launch`, with Accelerate's loop, and with a `Trainer` and TRL's SFT and GRPO in bf16: "
    "several epochs, uneven last batches, evaluation, resumption": ["test_fsdp2_launched.py"],
    "transformers' `Trainer`, TRL 1.16's SFT, DPO, KTO, reward, GRPO and RLOO, PEFT 0.21's LoRA, with Accelerate's "
    "plugin; tied weights; answers drawn by each rank for itself": [
        f"test_fsdp2_trainers.py::{name}"
        for name in (
            "test_trainers_with_the_plugin",
            "test_what_the_page_says",
            "test_adapters",
            "test_thirty_steps",
            "test_ranks_generate_apart",
        )
    ],
    "microbatch counts that differ: Accelerate's loop, `Trainer`, SFT and GRPO (there none, too), verl's actor update; "
    "equal to one process": [
        "test_fsdp2_accelerate.py::test_what_the_page_says",
        "test_fsdp2_trainers.py::test_uneven_counts",
        "test_fsdp2_verl.py::test_the_actor_update",
    ],
    "`Trainer` and TRL's SFT, DPO, reward and GRPO on models from transformers' `DistributedConfig`; tied weights": [
        "test_fsdp2_trainers.py::test_models_sharded_as_they_are_loaded"
    ],
    "torchtitan 0.3's `Trainer` with a small Llama, changed as MIGRATING.md says, its chunked loss and its LoRA; equal "
    "to plain FSDP2, or with unequal counts to one process, but for rounding": [
        "test_fsdp2_torchtitan.py::test_the_trainer"
    ],
    "verl 0.9's FSDP engine, subclassed as MIGRATING.md says: an actor's update with dynamic batches, also of LoRA, "
    "and by verl's training worker": [
        "test_fsdp2_verl.py::test_the_actor_update",
        "test_fsdp2_verl.py::test_the_update_by_verls_worker",
    ],
}
REFUSED: dict[str, list[str]] = {
    "HSDP, `replicate()`: shard over all ranks": [_REFUSALS, "test_fsdp2_misuse.py::test_replicate_is_refused"],
    "`reshard_after_forward=<int>`, an all-reduce hook, an optimizer in backward": [_REFUSALS],
    "trainable parameters that FSDP2 does not manage and a hook reduces (PEFT on a model from `DistributedConfig`)": [
        "test_fsdp2_unsharded.py::test_parameters_that_reduce_by_a_hook_are_refused"
    ],
    "several meshes in a model or a module; other communication hooks, symmetric memory": [
        _REFUSALS,
        "test_fsdp2_misuse.py::test_two_meshes_in_a_module_are_refused",
    ],
}
NOT_YET_RUN = [
    "parameters on a GPU: seven tests of `test_fsdp2_cuda.py` for which [one GPU](gpu.md) left no time",
    'parameters in slices and gradients as views (`attach(parameters="slice", gradients="view")`) on a GPU',
    "torchtitan's other models and parallelisms, its checkpoints and validation",
    "verl's workers under Ray, rollouts, critic, reference, checkpoints and packed sequences",
    "torch 2.10, 2.12, 2.14 (2.11 ran [on one GPU](gpu.md); by hand 2.15.0, and 2.9.1, equal to its own plain FSDP2)",
]


class Outcomes:
    """A plugin of pytest: collects the tests that did not pass."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.others: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif not report.passed:
            self.others.add(report.nodeid)


def table(trained: str = "yes", refused: str = "refused, with the reason") -> str:
    rows = [("with FSDP2", "over ODC"), ("---", "---")]
    rows += [(feature, trained) for feature in TRAINED]
    rows += [(feature, refused) for feature in REFUSED]
    rows += [(feature, "not yet run") for feature in NOT_YET_RUN]
    return "".join(f"| {feature} | {answer} |\n" for feature, answer in rows)


def tests() -> list[str]:
    return sorted({one for several in (TRAINED | REFUSED).values() for one in several})


def main() -> int:
    outcomes = Outcomes()
    folder = Path(__file__).parent
    status = pytest.main(["-q", *(str(folder / one) for one in tests())], plugins=[outcomes])
    if status != 0 or outcomes.others or not outcomes.passed:
        print("not written: not all tests passed", *sorted(outcomes.others), sep="\n  ")
        return 1
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + table() + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
