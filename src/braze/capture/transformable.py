"""Whether a frame's graph can be called under transforms of torch.func."""

from __future__ import annotations

from braze.ir.captured.frame import CapturedFrame, Refused
from braze.ir.graphs.custom_gradient import is_custom
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.op_effects import has_effects
from braze.ir.graphs.region import is_region
from braze.ir.origin import Origin


def why_untransformable(captured: CapturedFrame, transforms: tuple[str, ...]) -> Refused | None:
    """Why a frame's graph cannot be; None where it can. transforms: their kinds, outermost first.

    Gradients may run a graph again, so it must have no effects. Each level makes tensors of its own
    of results, so that views are made outside of the graph. PyTorch has no rules for batches and
    tangents of what the program's own `autograd.Function` became in a graph.
    """
    reason = _reason(captured.graph, transforms)
    if reason is None:
        return None
    code = captured.code
    around = " of ".join([kind.lower() for kind in transforms])
    text = f"{code.co_qualname} is called under {around}, and {reason}"
    hint = "apply the transform inside of the compiled function"
    origin = Origin(code.co_filename, code.co_firstlineno, code.co_qualname)
    return Refused("unsupported", "transform", text, hint, origin)


# --- private ---------------------------------------------------------------------------------


def _reason(graph: Graph, transforms: tuple[str, ...]) -> str | None:
    if graph.mutations:
        return "it writes to a tensor that was there before"
    if any(output.alias and not output.alias.steps for output in graph.outputs):
        return "a result is a view, and the operators that made it are not known"
    if any(map(is_region, graph.nodes)):
        return "it has control flow that data decide"
    if any(map(is_custom, graph.nodes)) and set(transforms) != {"Grad"}:
        return "it has a custom autograd function"
    effects = [node for node in graph.nodes if has_effects(node.op)]
    if effects:
        return f"{effects[0].op} draws random numbers or has other effects"
    return None
