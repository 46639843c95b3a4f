"""`torch.compile(backend="braze")`."""

from __future__ import annotations

import torch

from braze.interop import torch_compile


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(self.linear(x)), -1) + x


def test_through_the_entry_point() -> None:
    model, x = Block().eval(), torch.randn(3, 4)
    compiled = torch.compile(model, backend="braze", options={"numerics": "default"})
    with torch.no_grad():
        for size in (3, 5):
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), model(x))


def test_called_directly() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.sin(x) * 2,))
    x = torch.randn(5)
    (result,) = torch_compile.braze_backend(graph, [x], mode="default")(x)
    torch.testing.assert_close(result, torch.sin(x) * 2)
