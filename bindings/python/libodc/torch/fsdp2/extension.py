# SPDX-License-Identifier: Apache-2.0
"""Groups whose parameters gather something other than themselves (fsdp_pre_all_gather: float8, for example). Only FSDP2
knows what that is, so it is captured by an unshard; its inner layout stays unknown."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .group import Gather, Group, JobHooks
from .torch_state import AllGather


class ExtensionGroup(Group):
    publishing = False

    def all_gather(self, job: JobHooks) -> AllGather:
        return ExtensionGather(self, job)

    def elsewhere(self, tied: set[int]) -> dict[int, str]:
        return {id(entry.parameter): "gathered by an extension" for entry in self.layout.entries}

    def capture(self) -> None:
        """Copies what FSDP2 gathers into the slice."""
        self.publishing = True
        try:
            self.fsdp.module.unshard()
        finally:
            self.publishing = False
            self.fsdp.module.reshard()

    def differs(self) -> str | None:
        """Changes are visible in the gathered data only, see changed()."""
        return None

    def edited_copy(self) -> str | None:
        """Only FSDP2 knows with what an edit would have to be compared."""
        return None

    def changed(self) -> str | None:
        return f'parameter "{self.layout.entries[0].name}"'

    def publish(self, output: torch.Tensor, mine: torch.Tensor) -> None:
        self._published.view(mine.dtype).copy_(mine)
        output.view(self.ranks, -1).copy_(mine.clone())  # valid input for the extension


class ExtensionGather(Gather):
    def __init__(self, group: ExtensionGroup, job: JobHooks) -> None:
        super().__init__(group, job)
        self._extension = group

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if self._extension.publishing:
            self._extension.publish(output_tensor, input_tensor)
            return None
        return super().__call__(output_tensor, input_tensor, group, async_op)
