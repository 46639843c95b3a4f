"""A backend of your own: it replaces each relu by a leaky one, and runs the graph by PyTorch."""

from collections.abc import Callable
from typing import Any

import torch

import braze


@braze.register_backend
def leaky(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Rewrite the graph, an ordinary `torch.fx.GraphModule`."""
    replaced = 0
    for node in list(graph.graph.nodes):
        if node.target in (torch.relu, torch.nn.functional.relu):
            with graph.graph.inserting_after(node):
                new = graph.graph.call_function(torch.nn.functional.leaky_relu, (node.args[0], 0.1))
            node.replace_all_uses_with(new)
            graph.graph.erase_node(node)
            replaced += 1
    graph.recompile()
    print(f"{len(example_inputs)} inputs, {replaced} relu replaced")
    return graph.forward


@braze.compile(backend="leaky")
def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight) + 1


def main() -> None:
    x, weight = torch.randn(3, 4), torch.randn(4, 5)
    expected = torch.nn.functional.leaky_relu(x @ weight, 0.1) + 1
    torch.testing.assert_close(layer(x, weight), expected)

    # Backends chain: this one hands the rewritten graph on to Braze's own compiler.
    def leaky_and_fast(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        rewritten = leaky(graph, example_inputs)
        return braze.compile(lambda *args: rewritten(*args))

    chained = braze.compile(lambda x, w: torch.relu(x @ w) + 1, backend=leaky_and_fast)
    torch.testing.assert_close(chained(x, weight), expected)
    print("as expected")


if __name__ == "__main__":
    main()
