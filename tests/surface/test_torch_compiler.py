"""Every public function of `torch.compiler` and of its front end, called inside of a compiled
function and then beside it: the program goes on as eager does, and where torch.compile keeps one
graph, so does Braze. A name that PyTorch adds fails until it is called here, or left out with a
reason."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

Call = Callable[[torch.Tensor], Any]


def _dynamo() -> Any:
    return torch._dynamo  # type: ignore[attr-defined]


def _plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _own(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def _disallow(x: torch.Tensor) -> None:
    _dynamo().allow_in_graph(_own)  # only what is allowed can be disallowed
    _dynamo().disallow_in_graph(_own)


# What is called by name, with a tensor at hand.
CALLS: dict[str, Call] = {
    "allow_in_graph": lambda x: torch.compiler.allow_in_graph(torch.sin)(x),
    "assume_constant_result": lambda x: torch.compiler.assume_constant_result(lambda: 3)(),
    "compile": lambda x: torch.compile(_plus, backend="eager")(x),
    "cudagraph_mark_step_begin": lambda x: torch.compiler.cudagraph_mark_step_begin(),
    "cudagraph_mark_warmup_incomplete": lambda x: torch.compiler.cudagraph_mark_warmup_incomplete(),  # type: ignore[attr-defined] # from 2.14
    "disable": lambda x: torch.compiler.disable(_plus)(x),
    "disable_nested_graph_breaks": lambda x: _dynamo().disable_nested_graph_breaks(_plus)(x),
    "disallow_in_graph": _disallow,
    "dont_skip_tracing": lambda x: _dynamo().dont_skip_tracing(_plus)(x),
    "error_on_graph_break": lambda x: _dynamo().error_on_graph_break(True),
    "get_default_backend": lambda x: torch.compiler.get_default_backend(),
    "get_recursion_limit": lambda x: _dynamo().get_recursion_limit(),
    "graph_break": lambda x: _dynamo().graph_break(msg="here"),
    "is_compiling": lambda x: (torch.compiler.is_compiling(), _dynamo().is_compiling()),
    "is_dynamo_compiling": lambda x: torch.compiler.is_dynamo_compiling(),
    "is_dynamo_supported": lambda x: _dynamo().is_dynamo_supported(),
    "is_exporting": lambda x: torch.compiler.is_exporting(),
    "is_inductor_supported": lambda x: _dynamo().is_inductor_supported(),
    "list_backends": lambda x: (torch.compiler.list_backends(), _dynamo().list_backends()),
    "lookup_backend": lambda x: _dynamo().lookup_backend("eager"),
    "mark_dynamic": lambda x: _dynamo().mark_dynamic(x, 0),
    "mark_static": lambda x: _dynamo().mark_static(x, 0),
    "mark_static_address": lambda x: _dynamo().mark_static_address(x),
    "maybe_mark_dynamic": lambda x: _dynamo().maybe_mark_dynamic(x, 0),
    "nested_compile_region": lambda x: torch.compiler.nested_compile_region(_plus)(x),
    "nonstrict_trace": lambda x: _dynamo().nonstrict_trace(_plus)(x),
    "reset": lambda x: (torch.compiler.reset(), _dynamo().reset()),
    "run": lambda x: _dynamo().run(_plus)(x),
    "save_cache_artifacts": lambda x: torch.compiler.save_cache_artifacts(),
    "set_default_backend": lambda x: torch.compiler.set_default_backend(
        torch.compiler.get_default_backend()
    ),
    "set_stance": lambda x: torch.compiler.set_stance("default"),
    "skip_frame": lambda x: _dynamo().skip_frame(msg="here"),
    "step_unsupported": lambda x: _dynamo().step_unsupported(),
}
_GUARDS = "a value of the option `guard_filter_fn`: tests/guides/test_guard_filters.py"
_OF_COMPILES = "is about torch.compile's own compiles and their records"
# Names that mean torch.compile alone, with the reason.
LEFT_OUT: dict[str, str] = {
    "allow_c_slot": _OF_COMPILES,
    "explain": "reports on torch.compile: `braze.explain`",
    "export": "exports by torch.compile's front end: `braze.export`",
    "forbid_in_graph": "gives a function that may not be compiled: `braze.disallow_in_graph`",
    "is_dynamo_disable_recursive": _OF_COMPILES,
    "keep_portable_guards_unsafe": _GUARDS,
    "keep_tensor_guards_unsafe": _GUARDS,
    "load_cache_artifacts": "loads torch.compile's kernels",
    "load_compiled_function": "of both: tests/guides/test_ahead_of_time.py",
    "on_compile_end": _OF_COMPILES,
    "on_compile_start": _OF_COMPILES,
    "optimize": "is torch.compile under an older name",
    "optimize_assert": "is torch.compile under an older name",
    "override_cudagraphs": _OF_COMPILES,
    "override_optimization_hint": "a hint for torch.compile's symbols",
    "patch_dynamo_config": _OF_COMPILES,
    "precompile": "compiles ahead of time by torch.compile's stages",
    "register_backend": "of both: `braze.list_backends` has what is registered",
    "register_hook_for_recompile_user_context": _OF_COMPILES,
    "replay": "plays a record of torch.compile's back",
    "reset_code": _OF_COMPILES,
    "reset_code_caches": _OF_COMPILES,
    "reset_code_state": _OF_COMPILES,
    "reset_frame_count": _OF_COMPILES,
    "reset_recompile_user_contexts": _OF_COMPILES,
    "set_enable_guard_collectives": _OF_COMPILES,
    "set_recursion_limit": _OF_COMPILES,
    "skip_all_guards_unsafe": _GUARDS,
    "skip_guard_on_all_nn_modules_unsafe": _GUARDS,
    "skip_guard_on_globals_unsafe": _GUARDS,
    "skip_guard_on_inbuilt_nn_modules_unsafe": _GUARDS,
    "substitute_in_graph": "of functions in C: `braze.substitute_in_graph`",
    "wrap_numpy": "of functions of arrays: tested with NumPy",
}
# Those by which torch.compile does not break a graph that is captured whole.
WHOLE = """
is_compiling is_dynamo_compiling is_exporting mark_static error_on_graph_break
""".split()


def program(call: Call) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        call(x)
        return y * 2

    return function


def test_each_name_is_called_or_left_out() -> None:
    plain = (type, types.ModuleType)
    for module in (torch.compiler, _dynamo()):
        for name in dir(module):
            value = getattr(module, name)
            if name[0] == "_" or isinstance(value, plain) or not callable(value):
                continue
            if (getattr(value, "__module__", "") or "").startswith("torch."):
                assert (name in CALLS) != (name in LEFT_OUT), f"{module.__name__}.{name}"


def _is_of_this_version(name: str) -> bool:
    """Whether the present PyTorch has the name."""
    return any(hasattr(module, name) for module in (torch.compiler, _dynamo()))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "list_backends"])
def test_called_inside_and_beside(name: str) -> None:
    if not _is_of_this_version(name):
        pytest.skip(f"this PyTorch has no {name}")
    call, x = CALLS[name], torch.rand(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = braze.compile(program(call), backend="eager")
        for size in (3, 3, 5):
            torch.testing.assert_close(compiled(x[:size]), x[:size].sin() * 2)
        call(x)  # and what it leaves behind holds for what is compiled
        torch.testing.assert_close(compiled(x), x.sin() * 2)
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("name", WHOLE)
def test_called_inside_of_one_graph(name: str, journal: Journal) -> None:
    compiled, x = braze.compile(program(CALLS[name]), fullgraph=True), torch.rand(3, 4)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    assert [record.outcome for record in journal.records()] == ["graph"]
