"""One function leaves calls to eager: nothing else that serves calls runs the program's own code.

What a call of the program's looks like is told by names, and by arguments that are passed on as
they came. `tests/fuzz/test_counted_calls.py` watches the program's code objects instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import Function, listed, source_files

# What stands between a user's call and what was compiled.
SERVING = ("runtime", "targets", "pipeline", "api", "interop", "disabled")
# What the program's own functions and modules are called there, as variables and as attributes.
VARIABLES = frozenset(
    "function program target original module model wrapped fn func rest run_eagerly eagerly".split()
)
ATTRIBUTES = frozenset("_function __wrapped__ forward original".split())
# There it is done, and nowhere else.
DECIDES = ("src/braze/runtime/dispatch/eager_fallback.py", "leave_to_eager")

# (file, function) -> why no call is left to eager there.
REASONS: dict[tuple[str, str], str] = {
    ("src/braze/api.py", "explainer"): "the explained callable is compiled",
    ("src/braze/api.py", "explain"): "calls the explainer at once",
    ("src/braze/api.py", "export"): "calls the exporter at once",
    ("src/braze/disabled.py", "disabled"): "what disable() gives: the user asks for it",
    ("src/braze/targets.py", "call"): "the same of modules",
    ("src/braze/targets.py", "export_function"): "binds arguments",
    ("src/braze/targets.py", "__call__"): "a module's compiled call",
    ("src/braze/runtime/dispatch/module_wrapper.py", "_call_original"): (
        "what other compilers read instead"
    ),
    ("src/braze/runtime/dispatch/module_wrapper.py", "_call_forward_of_original"): "the same",
    ("src/braze/targets.py", "_call_original"): "what other compilers read in the place of ours",
    ("src/braze/targets.py", "_call_class_forward"): "a forward that is compiled itself, or C code",
    ("src/braze/runtime/dispatch/compiled_function.py", "_run_original"): (
        "what other compilers read in place of ours"
    ),
    ("src/braze/pipeline.py", "capture_whole"): "export, of a program that raises: it does so here",
    ("src/braze/runtime/dispatch/compiled_function.py", "call"): (
        "a call that a frame makes behind a reported break"
    ),
    ("src/braze/runtime/autograd/transformed_graph.py", "run"): "the kernels of a graph",
    ("src/braze/runtime/resume/frame_calls.py", "called_by"): "calls a step of the driver's",
    ("src/braze/runtime/dispatch/compiled_function.py", "_find_and_run"): "binds arguments",
    ("src/braze/runtime/dispatch/callees.py", "_step"): (
        "an optimizer's, called behind a reported break"
    ),
    ("src/braze/runtime/dispatch/module_wrapper.py", "__call__"): (
        "calls what finds the compiled call"
    ),
    ("src/braze/runtime/dispatch/module_wrapper.py", "forward"): "the same",
    ("src/braze/runtime/dispatch/hooks_outside.py", "call_between_hooks"): (
        "hooks that the user leaves out, and a compiled forward"
    ),
    ("src/braze/interop/fx_constants.py", "call"): "a node of a graph that a backend runs",
    (
        "src/braze/interop/example_values.py",
        "__torch_dispatch__",
    ): "asked before any call",
    ("src/braze/runtime/guards/process_state.py", "same_answer"): "a guard asks its question",
    ("src/braze/runtime/guards/process_state.py", "explain_answer"): "the same",
    ("src/braze/runtime/cuda/cubin_worker.py", "build"): "Triton's, of generated source",
    ("src/braze/runtime/autograd/compiled_autograd_function.py", "forward"): (
        "runs a compiled graph"
    ),
    ("src/braze/runtime/guards/leaf_hooks.py", "__call__"): "calls a C function of Braze's",
    ("src/braze/runtime/cuda_graphs/cuda_graph.py", "empty_result"): "makes a tensor",
    ("src/braze/runtime/cuda_graphs/capture_trials.py", "call"): "a launch program's ATen call",
    ("src/braze/runtime/launch/timed_program.py", "call_timed"): "the same",
}


def ways_out(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(function, line) of each call of what may be the program's."""
    for function in ast.walk(tree):
        if isinstance(function, Function):
            for node in _own_nodes(function):
                if isinstance(node, ast.Call) and _is_of_program(node):
                    yield function.name, node.lineno


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, Function):
            yield node
            yield from _own_nodes(node)


def _is_of_program(call: ast.Call) -> bool:
    called = call.func
    if isinstance(called, ast.Name) and called.id in VARIABLES:
        return True
    if isinstance(called, ast.Attribute) and called.attr in ATTRIBUTES:
        return True
    has_star = any(isinstance(argument, ast.Starred) for argument in call.args)
    return has_star and any(keyword.arg is None for keyword in call.keywords)


def _found() -> dict[tuple[str, str], int]:
    return {
        (file.name, name): line
        for file in source_files()
        if file.layer in SERVING
        for name, line in ways_out(file.tree)
    }


def test_one_function_leaves_calls_to_eager() -> None:
    found = _found()
    assert found.pop(DECIDES), "nothing runs the program's own code"
    unknown = [f"{file}:{line}: {name}" for (file, name), line in found.items()
               if (file, name) not in REASONS]  # fmt: skip
    assert not unknown, f"call leave_to_eager, which counts and says why:{listed(unknown)}"


def test_reasons_are_of_what_is_there() -> None:
    assert set(REASONS) <= set(_found()), set(REASONS) - set(_found())


@pytest.mark.parametrize(
    "call",
    [
        "function(*args, **kwargs)",
        "self._function(x)",
        "find(model)(model, *args, **kwargs)",
        "run(*given, **named)",
        "rest()",
    ],
)
def test_ways_out_are_found(call: str) -> None:
    planted = ast.parse(f"def sneak(self, function, args, kwargs):\n    return {call}\n")
    assert list(ways_out(planted)) == [("sneak", 2)]
