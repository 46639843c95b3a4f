"""What needs a real autograd history: it breaks the graph, and is then done for real.

Gradients flow through a captured graph from inputs that require them; a history that begins or
ends inside of the frame is not in the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.handler_table import answers
from braze.capture.signals import BreakRequested


def _breaks(name: str) -> Any:
    def stop(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise BreakRequested("unsupported-tensor", f"{name} needs the gradients themselves")

    return stop


_HISTORY = {
    "Tensor.register_hook": torch.Tensor.register_hook,
    "Tensor.register_post_accumulate_grad_hook": torch.Tensor.register_post_accumulate_grad_hook,
    "Tensor.retain_grad": torch.Tensor.retain_grad,
    "Tensor.detach_": torch.Tensor.detach_,
}
for _name, _function in _HISTORY.items():
    answers(_function)(_breaks(_name))
