"""A function's forward and backward as schedules for a GPU, run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from braze.autograd import partition, trace_joint
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.joint_graph import SavedInput
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.schedule import AttentionGradients, Kernel, Schedule
from braze.lower import lower
from braze.rewrite import rewrite
from braze.rewrite.recompute_attention import WhereWorth, recompute_attention
from braze.schedule import schedule
from braze.tracing import Tracer
from tests.unit.codegen.attention_programs import TARGET
from tests.unit.codegen.triton_running import OPTIONS, run_sources

ANYWHERE = WhereWorth(frozenset({"cpu"}), frozenset({torch.float32, torch.bfloat16}), 0)


@dataclass
class Trained:
    """results and gradients, of inputs that want one; plans: of forward and backward; saved: what
    the backward is given besides inputs; texts: of the backward's kernels of attention."""

    results: list[torch.Tensor]
    gradients: list[torch.Tensor]
    plans: tuple[Schedule, Schedule]
    saved: list[torch.Tensor]
    texts: list[str]

    @property
    def kernels(self) -> list[Kernel]:
        """The backward's kernels of attention."""
        steps = [step for step in self.plans[1].steps if isinstance(step, Kernel)]
        return [step for step in steps if isinstance(step.attention, AttentionGradients)]


def train(
    function: Callable[..., Any], given: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
) -> Trained:
    """Run a function, and its backward for the gradients of its results."""
    from braze.codegen.triton import generate

    tracer = Tracer(replayable=False)
    with tracer:
        made = function(*[tracer.add_input(x) for x in given])
        finished = tracer.finish(list(made) if isinstance(made, tuple) else [made])
    inputs = [given[number] for number in finished.inputs]
    pair = partition(recompute_attention(trace_joint(finished.graph), ANYWHERE))
    program, plan = _planned(pair.forward)
    forward = run_sources(program, plan, generate(plan, OPTIONS), [x.detach() for x in inputs])
    saved = [
        inputs[one.index].detach() if isinstance(one, SavedInput) else forward[one.index]
        for one in pair.saved
    ]
    again, behind = _planned(pair.backward.graph)
    sources = generate(behind, OPTIONS)
    found = run_sources(again, behind, sources, [*saved, *tangents])
    kept = [v for v, one in zip(saved, pair.saved, strict=True) if not isinstance(one, SavedInput)]
    texts = [launch.function.text for row in sources.launches for launch in row]
    return Trained(
        forward[: len(tangents)],
        [found[number] for number in pair.backward.gradients if number is not None],
        (plan, behind),
        kept,
        [text for text in texts if "tl.dot" in text],
    )


# --- private -------------------------------------------------------------------------------------


def _planned(graph: Graph) -> tuple[LoopProgram, Schedule]:
    from braze.codegen.triton import supports

    program = lower(rewrite(graph, OPTIONS), OPTIONS, supports)
    return program, schedule(program, OPTIONS, TARGET)
