# SPDX-License-Identifier: Apache-2.0
"""Random numbers that belong to a microbatch, not to the rank that computes it."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def microbatch_seed(seed: int, epoch: int, microbatch: Sequence[int]) -> int:
    """63 bits that depend on these numbers only: the same on every rank, machine and version."""
    text = repr((int(seed), int(epoch), [int(sample) for sample in microbatch]))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the block the generators of torch (the CPU's, and the current GPU's if the process uses one), Python's
    random, and NumPy's where it is imported, begin with `seed`; after it they go on as if the block had not been. They
    are the whole process's: no other thread may draw meanwhile."""
    numpy: Any = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), None if numpy is None else numpy.random.get_state()
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus, device_type="cuda"):
        # torch.manual_seed would also seed GPUs that are not restored.
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
