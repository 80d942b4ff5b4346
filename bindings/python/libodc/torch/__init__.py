# SPDX-License-Identifier: Apache-2.0
"""What needs PyTorch: training with FSDP2 over On-Demand Communication. `import libodc` does not import it."""

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    why = "libodc.torch needs PyTorch 2.9 or later, which is not installed; pip install 'libodc[torch]'"
    raise ImportError(why) from error

from . import fsdp2
from .loader import MinibatchLoader
from .pool import Pool
from .sampler import MinibatchSampler
from .seeds import seeded

__all__ = ["MinibatchLoader", "MinibatchSampler", "Pool", "fsdp2", "seeded"]
