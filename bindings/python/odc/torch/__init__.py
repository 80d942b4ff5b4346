# SPDX-License-Identifier: Apache-2.0
"""What needs torch: training with PyTorch FSDP2 over On-Demand Communication."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("odc.torch needs PyTorch 2.9 or later: pip install torch") from error
