"""A node whose gradients the program defines: what `torch.autograd.Function` is in a graph.

    %2 = sin(%0)                                         # the forward, without gradients
    %3 = custom_gradient<F>([%0], [%2], [%0], [])        # %2, with the gradient:
             (%5, %0): %6 = cos(%0); %7 = mul(%5, %6)    # %7 of %0, where %5 comes in for %3

Such a node stands in captured graphs only. A replay under autograd (the joint trace, a graph run
by eager kernels) makes a real autograd Function of it; where no gradients are recorded it is left
out (`without_custom_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import AutogradFunction
from braze.compat.torch.registered_ops import custom_gradient
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value, replace_operands
from braze.ir.graphs.run_graph import call_node, flat_tensors


@final
@frozen(eq=False)
class Formula:
    """The backward for one choice of incoming gradients.

    given: per result, whether its gradient comes in. tangents: the values that those are.
    reads: what else the nodes read: (value, kind, number) with kind "input" or "result" for the
        node's own operands and results, "captured" for the operands behind them, "number" for the
        sizes behind these: a value stands for each, since sizes of the trace are unknown later.
    gradients: per input, its gradient or None.
    """

    given: tuple[bool, ...]
    tangents: tuple[Value, ...]
    reads: tuple[tuple[Value, str, int], ...]
    nodes: tuple[Node, ...]
    gradients: tuple[Value | None, ...]


@final
@frozen(eq=False)
class CustomGradient:
    """In the place of a node's operator: `(inputs, results, captured, sizes) -> results`, with
    gradients.

    name: of the program's class. formulas: the first is that for all gradients at once.
    materializes: gradients that do not come in are zeros. once: it cannot be differentiated again.
    """

    name: str
    formulas: tuple[Formula, ...] = ()
    materializes: bool = True
    once: bool = False

    @property
    def _schema(self) -> Any:
        return custom_gradient._schema

    @property
    def _op(self) -> Callable[..., object]:
        return self.__call__

    @property
    def namespace(self) -> str:
        """As of an operator."""
        return str(custom_gradient.namespace)

    @property
    def tags(self) -> tuple[()]:
        """As of an operator."""
        return ()

    def __call__(
        self,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        captured: Sequence[torch.Tensor],
        sizes: Sequence[int | torch.SymInt],
    ) -> list[torch.Tensor]:
        """The results, as what autograd makes of this node."""
        outside = {"captured": list(captured), "number": list(sizes)}
        made = _Replayed.apply(self, list(results), outside, *inputs)
        return list(made)

    def __str__(self) -> str:
        return f"custom_gradient<{self.name}>"


def is_custom(node: Node) -> bool:
    """Whether the gradients of a node are the program's own."""
    return isinstance(node.op, CustomGradient)


def without_custom_gradients(graph: Graph) -> Graph:
    """The graph for use without autograd: the results of such nodes are what they were before."""
    if not any(map(is_custom, graph.nodes)):
        return graph
    new: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = replace_operands(node, new)
        if is_custom(node):
            results: Sequence[Value] = node.args[1]
            both = zip(node.outputs, results, strict=True)
            new.update({value: result for value, result in both if value is not None})
        else:
            nodes.append(node)
    outputs = []
    for output in graph.outputs:
        alias = output.alias
        if alias is not None:
            alias = replace(alias, base=new.get(alias.base, alias.base))
        outputs.append(replace(output, value=new.get(output.value, output.value), alias=alias))
    mutations = tuple(replace(m, value=new.get(m.value, m.value)) for m in graph.mutations)
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs), mutations=mutations)


# --- private ---------------------------------------------------------------------------------


@unseen_by_other_compilers
class _Replayed(AutogradFunction):
    @staticmethod
    def forward(ctx: Any, op: CustomGradient, results: Any, outside: Any, *inputs: object) -> Any:
        made = tuple([result.detach() for result in results])
        ctx.op, ctx.outside = op, outside
        reads = {(kind, number) for f in op.formulas for _, kind, number in f.reads}
        ctx.places = [place for place in sorted(reads) if place[0] not in outside]
        tensors = {"input": inputs, "result": made}
        ctx.save_for_backward(*[tensors[kind][number] for kind, number in ctx.places])
        ctx.set_materialize_grads(op.materializes)
        return made

    @staticmethod
    def backward(ctx: Any, *tangents: object) -> Any:
        op: CustomGradient = ctx.op
        given = tuple([tangent is not None for tangent in tangents])
        if not any(given):
            return (None,) * len(ctx.needs_input_grad)
        formula = next((f for f in op.formulas if f.given == given), None)
        if formula is None:
            raise RuntimeError(f"{op.name} has no backward for such incoming gradients")
        known: dict[tuple[str, int], Any] = dict(zip(ctx.places, ctx.saved_tensors, strict=True))
        for kind, those in ctx.outside.items():
            known.update(((kind, n), one) for n, one in enumerate(those))
        present = [tangent for tangent in tangents if tangent is not None]
        read = [known[kind, number] for _, kind, number in formula.reads]
        run: Callable[..., Any] = _run
        if op.once:  # which asks its tangents alone whether a second derivative is wanted
            run, read = _run_once, [x.detach() if isinstance(x, torch.Tensor) else x for x in read]
        gradients = run(None, formula, *present, *read)
        if isinstance(gradients, torch.Tensor):  # PyTorch's decorator gives one of them as it is
            gradients = (gradients,)
        return (None, None, None, *gradients)


def _run(_: object, formula: Formula, *given: object) -> tuple[object, ...]:
    names = [*formula.tangents, *[value for value, _, _ in formula.reads]]
    values: dict[Value, Any] = dict(zip(names, given, strict=True))
    for node in formula.nodes:
        made = call_node(node, values)
        for value, result in zip(node.outputs, flat_tensors(made) if node.outputs else []):
            if value is not None:
                values[value] = result
    return tuple([None if gradient is None else values[gradient] for gradient in formula.gradients])


_run_once = torch.autograd.function.once_differentiable(_run)
