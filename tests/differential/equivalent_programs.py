"""Captured programs beside programs that are the same by algebra.

    python -m tests.differential.equivalent_programs --programs 200 --first 0 --forms 3

Of a captured graph other graphs are made: each value may be transposed twice, viewed flat and back,
flipped twice, cast to a wider dtype and back, cut into slices that are put together again; what is
computed point by point may be computed of slices, and a maximum or a minimum taken of those of two
parts. None of it changes a bit, so all forms give the same bytes under numerics="eager": Braze is
compared with itself, and the same mistake in every form is not seen. Sums of a value that lies
otherwise in memory are rounded in another order, and are compared within the dtype's tolerance.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from braze.codegen.cpp import generate, supports
from braze.ir.graphs.graph import Graph, Node, Value
from braze.ir.graphs.run_graph import call_node, flat_tensors
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule
from braze.tracing import Tracer
from tests.differential.bytes_sweep import same_bytes
from tests.differential.fusion_programs import Program, make_program
from tests.differential.test_fusion_fuzz import differences

Tensor = torch.Tensor
_WIDER = {
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.int64: torch.int64,
    torch.bool: torch.int32,
}
_ROUNDED = ("sum", "mean", "softmax", "prod", "var", "norm", "cumsum", "logsumexp", "mm")


def _transposed(x: Tensor, choice: random.Random) -> Tensor:
    one, other = choice.randrange(x.dim()), choice.randrange(x.dim())
    return x.transpose(one, other).transpose(one, other)


def _permuted(x: Tensor, choice: random.Random) -> Tensor:
    order = list(range(x.dim()))
    choice.shuffle(order)
    return x.permute(order).permute([order.index(d) for d in range(x.dim())])


def _flat(x: Tensor, choice: random.Random) -> Tensor:
    return x.reshape(-1).reshape(x.shape)


def _folded(x: Tensor, choice: random.Random) -> Tensor:
    """Dimensions joined from the left, then from the right: views are associative."""
    place = choice.randrange(x.dim())
    joined = x.flatten(0, place)
    return joined.flatten(0).reshape(*x.shape)


def _flipped(x: Tensor, choice: random.Random) -> Tensor:
    dim = choice.randrange(x.dim())
    return x.flip(dim).flip(dim)


def _cast(x: Tensor, choice: random.Random) -> Tensor:
    return x.to(_WIDER.get(x.dtype, x.dtype)).to(x.dtype)


def _sliced(x: Tensor, choice: random.Random) -> Tensor:
    dim = choice.randrange(x.dim())
    place = choice.randint(0, x.shape[dim])
    return torch.cat([x.narrow(dim, 0, place), x.narrow(dim, place, x.shape[dim] - place)], dim)


def _unsqueezed(x: Tensor, choice: random.Random) -> Tensor:
    return x.unsqueeze(0).expand(2, *x.shape).select(0, choice.randrange(2))


DISGUISES: tuple[Callable[[Tensor, random.Random], Tensor], ...] = (
    *(_transposed, _permuted, _flat, _folded, _flipped, _cast, _sliced, _unsqueezed),
)


def _computed(node: Node, values: dict[Value, Any], choice: random.Random) -> Any:
    """A node's results, computed of parts where that is the same."""
    tensors = [values[a] for a in node.args if type(a) is Value]
    op = node.op
    same = {tuple(t.shape) for t in tensors}
    pointwise = torch.Tag.pointwise in op.tags and not node.kwargs
    if pointwise and len(same) == 1 and tensors[0].dim() and choice.random() < 0.5:
        dim = choice.randrange(tensors[0].dim())
        place = choice.randint(0, tensors[0].shape[dim])
        parts = []
        for start, end in ((0, place), (place, tensors[0].shape[dim])):
            args = [
                values[a].narrow(dim, start, end - start) if type(a) is Value else a
                for a in node.args
            ]
            parts.append(op(*args))
        return torch.cat(parts, dim)
    if op._schema.name in ("aten::amax", "aten::amin") and choice.random() < 0.5:
        x, dims, *keeps = (values[a] if type(a) is Value else a for a in node.args)
        dims = [*dims] if dims else list(range(x.dim()))
        if dims and not node.kwargs and x.shape[dims[0]] > 1:
            place = choice.randint(1, x.shape[dims[0]] - 1)
            rest = x.shape[dims[0]] - place
            low = op(x.narrow(dims[0], 0, place), dims, *keeps)
            high = op(x.narrow(dims[0], place, rest), dims, *keeps)
            joined = torch.maximum if op._schema.name == "aten::amax" else torch.minimum
            return joined(low, high)
    return call_node(node, values)


def other_form(graph: Graph, inputs: list[Tensor], seed: int) -> tuple[Graph, list[Tensor]]:
    """A graph that is the same by algebra; and its inputs."""
    choice, tracer = random.Random(seed), Tracer()
    with tracer:
        values: dict[Value, Any] = {
            value: tracer.add_input(x) for value, x in zip(graph.inputs, inputs, strict=True)
        }
        values |= {c.value: tracer.add_constant(c.tensor) for c in graph.constants}
        for node in graph.nodes:
            results = flat_tensors(_computed(node, values, choice))
            for value, result in zip(node.outputs, results):
                if value is not None:
                    change = result.dim() and choice.random() < 0.4
                    values[value] = choice.choice(DISGUISES)(result, choice) if change else result
        finished = tracer.finish([values[output.value] for output in graph.outputs])
    return finished.graph, [tracer.inputs[place][1] for place in finished.inputs]


def captured(program: Program) -> tuple[Graph, list[Tensor]]:
    """The program's graph, and its inputs."""
    tracer = Tracer()
    with tracer:
        results = program(*[tracer.add_input(x) for x in program.inputs])
    finished = tracer.finish(results)
    return finished.graph, [tracer.inputs[place][1] for place in finished.inputs]


def results_of(graph: Graph, inputs: list[Tensor], count: int) -> list[Tensor]:
    """What the graph's kernels give under numerics="eager"."""
    with config.patch(numerics="eager"):
        options = config.snapshot()
    plan = schedule(lower(rewrite(graph, options), options, supports), options)
    function: Any = link(plan, generate(plan, options), options)
    return function(inputs)[:count]  # type: ignore[no-any-return]


def difference(seed: int, forms: int) -> tuple[str, int]:
    """What differs between the forms of a program, or nothing; and how many nodes they had more."""
    program = make_program(seed)
    rounded = any(word in str(program) for word in _ROUNDED)
    more = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, inputs = captured(program)
        count = len(program.results)
        expected = results_of(graph, inputs, count)
        for number in range(forms):
            other, given = other_form(graph, inputs, 1000 * seed + number)
            more += len(other.nodes) - len(graph.nodes)
            made = results_of(other, given, count)
            same = [same_bytes(b, a) for a, b in zip(expected, made, strict=True)]
            if all(same):
                continue
            bare = [[t.contiguous() for t in results] for results in (made, expected)]
            wrong = differences(*bare, "bfloat16" in str(program)) if rounded else f"bytes: {same}"
            if wrong:
                return f"seed {seed}, form {1000 * seed + number}: {wrong}\n{program}", more
    return "", more


def main(arguments: list[str]) -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--forms", type=int, default=3)
    options = parser.parse_args(arguments)
    wrong, more = 0, 0
    for seed in range(options.first, options.first + options.programs):
        found, nodes = difference(seed, options.forms)
        more += nodes
        wrong += bool(found)
        if found:
            print(found, flush=True)
    print(f"# {options.programs} programs, {more} nodes more, {wrong} differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
