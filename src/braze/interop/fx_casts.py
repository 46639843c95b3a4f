"""Autocast in `torch.fx` graphs: regions that nodes enter and leave.

with autocast("cpu", bfloat16):       entered = _enter_autocast("cpu", torch.bfloat16, True, True)
    y = x @ w                         matmul = l_x_ @ l_w_
z = y + 1                             _exit_autocast(entered)
                                      add = matmul + 1
"""

from __future__ import annotations

from typing import TypeAlias, final

import torch
from torch import fx

from braze.compat.torch.ambient_state import ENTER_AUTOCAST, EXIT_AUTOCAST

# (device type, dtype, whether casts are remembered) of each device for which autocast is on.
CastsOf: TypeAlias = tuple[tuple[str, torch.dtype, bool], ...]


@final
class CastNodes:
    """The regions of one graph. entered: what autocast does where the graph is called."""

    def __init__(self, made: fx.Graph) -> None:
        self._graph = made
        self._open: list[fx.Node] = []
        self._now: CastsOf | None = None
        self.entered: CastsOf = ()

    @property
    def now(self) -> CastsOf:
        """What autocast does to the nodes that follow."""
        return self.entered if self._now is None else self._now

    def switch(self, wanted: CastsOf) -> None:
        """Leave the regions that are open, and enter those that make the difference to what is so
        where the graph is called."""
        if wanted == self.now:
            return
        while self._open:
            self._graph.call_function(EXIT_AUTOCAST, (self._open.pop(),))
        self._now = wanted
        for device, dtype, remembers in wanted:
            if (device, dtype, remembers) not in self.entered:
                self._enter(device, dtype, True, remembers)
        inside = [device for device, _, _ in wanted]
        for device, _, _ in self.entered:
            if device not in inside:
                self._enter(device, None, False, None)

    def _enter(
        self, device: str, dtype: torch.dtype | None, enabled: bool, remembers: bool | None
    ) -> None:
        arguments = (device, dtype, enabled, remembers)
        self._open.append(self._graph.call_function(ENTER_AUTOCAST, arguments))
