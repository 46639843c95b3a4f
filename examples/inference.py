"""Compile a model for inference, check it against eager, and time both."""

import time

import torch

import braze


class Block(torch.nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def milliseconds(function: torch.nn.Module, x: torch.Tensor, calls: int = 10) -> float:
    """The mean time of a call, after one to warm up."""
    function(x)
    start = time.perf_counter()
    for _ in range(calls):
        function(x)
    return (time.perf_counter() - start) / calls * 1e3


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(128, 4) for _ in range(2))).eval()
    x = torch.randn(4, 64, 128)
    compiled = braze.compile(model, fullgraph=True)  # a graph break would be an error

    with torch.no_grad():
        start = time.perf_counter()
        y = compiled(x)
        print(f"first call, which compiles: {time.perf_counter() - start:.1f} s")
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
        print(f"eager {milliseconds(model, x):.2f} ms, compiled {milliseconds(compiled, x):.2f} ms")

    # Weights are shared: a change of the model is a change of the compiled one.
    with torch.no_grad():
        model[0].up.bias += 1
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    print("the weights are shared")


if __name__ == "__main__":
    main()
