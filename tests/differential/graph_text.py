"""The text of captured graphs: every operator of PyTorch's test database, for a user's backend that
compiles and runs what `gm.code` says."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import braze
from tests.differential.op_sweep import (
    UNDEFINED_CONTENTS,
    _compare,
    _copied,
    _run,
    _runs_eagerly,
    _samples,
)

# What Braze says where a stage or a graph of its own failed.
FAULT = r"(?s).*(bug in Braze|\[graph-fault\]|\[internal-error\])"


def run_text(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend: what the text of the graph says, with the names that torch.fx gives with it."""
    text = copy.deepcopy(module).code
    module.graph.lint()
    assert module.print_readable(print_output=False)
    space = dict(module.graph.python_code("self").globals)
    exec(compile(text, "<graph>", "exec"), space)
    forward: Callable[..., Any] = space["forward"]
    return lambda *given: forward(module, *given)


def check_text(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    """Compare what the text gives with eager, on some samples; how many graphs there were."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return run_text(module, inputs)

    for sample in _samples(op, dtype, limit, "cpu"):
        if _runs_eagerly(op, sample):
            _check_sample(op, sample, backend)
            braze.reset()
    return len(graphs)


def _check_sample(op: OpInfo, sample: SampleInput, backend: Any) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    arguments = (sample.input, *sample.args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", FAULT, braze.errors.BrazeWarning)
        expected = _run(function, arguments, sample.kwargs)
        options = {"suppress_errors": False}
        compiled = braze.compile(function, backend=backend, options=options)
        found = _run(compiled, arguments, sample.kwargs)
    if op.name not in UNDEFINED_CONTENTS:
        _compare(function, _copied(arguments), sample.kwargs, expected, found)
