"""What is kept of a captured frame whose graph is compiled."""

from __future__ import annotations

import torch

from braze.ir.captured.compile_request import CompiledEntry, GraphCallable
from braze.ir.captured.frame import CapturedFrame
from braze.ir.graphs.run_graph import in_inference_mode
from braze.runtime.autograd.saved_tensor_hooks import with_hooks_checked
from braze.runtime.dispatch.leaf_preparation import with_leaves_ready
from braze.runtime.dispatch.random_inputs import with_draws
from braze.runtime.dispatch.runtime_checks import with_checks


def entry_of(
    captured: CapturedFrame, graph: GraphCallable, draws_on: tuple[torch.device, ...]
) -> CompiledEntry:
    """What the dispatcher keeps of a captured frame. draws_on: devices that the graph draws on."""
    watched, saving = with_hooks_checked(graph, captured)
    run = with_checks(watched, captured.checks)
    run = in_inference_mode(run) if captured.in_inference else run
    return CompiledEntry(
        guards=captured.guards,
        inputs=captured.inputs,
        graph=with_leaves_ready(with_draws(run, captured.draws), captured),
        effects=captured.effects,
        exit=captured.exit,
        draws_on=draws_on,
        saving=saving,
    )
