"""What users of torch.compile say beside it: names, calling conventions, options, regions."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.exc import BrazeWarning, GraphBreakError, InvalidOption, UserError
from braze.interop.inductor_options import INDUCTOR_OPTIONS, in_brazes_words
from braze.marks import SUBSTITUTES
from braze.options import MODES
from braze.regions import REGIONS
from braze.trace import Journal

X = torch.tensor([1.0, -2.0, 0.0, 3.0])


def _graphs(journal: Journal) -> int:
    return sum(record.outcome == "graph" for record in journal.records())


def _codes(journal: Journal) -> list[str]:
    return [r.graph_break.code for r in journal.records() if r.graph_break is not None]


# --- regions --------------------------------------------------------------------------------------


def _torch_s(flag: bool) -> Any:
    return torch._dynamo.error_on_graph_break(flag)  # type: ignore[attr-defined]


IN_REGIONS = pytest.mark.parametrize(
    "region", [braze.error_on_graph_break, _torch_s], ids=["braze", "torch"]
)


@IN_REGIONS
def test_a_break_in_a_region_is_an_error(region: Any) -> None:
    def function(x: Any) -> Any:
        with region(True):
            y = x + 1
            braze.graph_break()
        return y

    with pytest.raises(GraphBreakError, match=r"under error_on_graph_break\(True\) \[explicit\]"):
        braze.compile(function)(X)
    assert not [*REGIONS]


@IN_REGIONS
def test_breaks_outside_of_a_region_are_none(region: Any, journal: Journal) -> None:
    def function(x: Any, events: list[str]) -> Any:
        events.append("begun")
        braze.graph_break()
        with region(True):
            y = x * 2
            with region(False):
                y = y + 1
                braze.graph_break()
            y = y.sin()
        braze.graph_break()
        events.append("done")
        return y

    compiled = braze.compile(function)
    for _ in range(2):
        got: list[str] = []
        torch.testing.assert_close(compiled(X, got), function(X, []))
        assert got == ["begun", "done"] and not [*REGIONS]
    assert _codes(journal) == ["explicit"] * 3 and _graphs(journal) == 4


@IN_REGIONS
def test_a_region_holds_behind_a_break_that_another_allowed(region: Any) -> None:
    def function(x: Any) -> Any:
        with region(True):
            with region(False):
                braze.graph_break()
            y = x + 5
            braze.graph_break()
        return y

    with pytest.raises(GraphBreakError, match="error_on_graph_break"):
        braze.compile(function)(X)
    assert not [*REGIONS]


@IN_REGIONS
def test_decorated_functions_and_calls_in_a_region(region: Any) -> None:
    def breaks(x: Any) -> Any:
        y = x + 1
        braze.graph_break()
        return y

    forbidden, allowed = region(True)(breaks), region(False)(breaks)
    with pytest.raises(GraphBreakError, match="error_on_graph_break"):
        braze.compile(lambda x: forbidden(x * 2))(X)
    torch.testing.assert_close(braze.compile(lambda x: allowed(x * 2))(X), X * 2 + 1)
    with pytest.raises(GraphBreakError, match="under fullgraph=True"):
        braze.compile(lambda x: allowed(x * 2), fullgraph=True)(X)
    with region(True), pytest.raises(GraphBreakError, match="error_on_graph_break"):
        braze.compile(breaks)(X)
    torch.testing.assert_close(braze.compile(breaks)(X), X + 1)


@IN_REGIONS
def test_exceptions_leave_a_region(region: Any, journal: Journal) -> None:
    def function(x: Any, flag: bool) -> Any:
        try:
            with region(True):
                y = x + 1
                if flag:
                    raise KeyError("left")
        except KeyError:
            y = x * 3
        braze.graph_break()
        return y

    compiled = braze.compile(function)
    for flag in (True, False):
        torch.testing.assert_close(compiled(X, flag), function(X, flag))
    assert not [*REGIONS] and set(_codes(journal)) == {"explicit"}


# --- what torch's names mean here -----------------------------------------------------------------


def test_dimensions_that_torch_marked(journal: Journal) -> None:
    def function(x: Any) -> Any:
        return x.sin() * x.shape[0]

    compiled = braze.compile(function)
    for size in (5, 7, 9):
        x = torch.randn(size, 3)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)  # type: ignore[attr-defined]
        torch.testing.assert_close(compiled(x), function(x))
    assert _graphs(journal) == 1
    x = torch.randn(100, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)  # type: ignore[attr-defined]
    with pytest.raises(braze.exc.ConstraintViolated):
        braze.compile(function)(x)
    static = braze.compile(lambda x: x.sin())
    for size in (5, 7, 9):
        x = torch.randn(size, 3)
        torch._dynamo.mark_static(x, 0)  # type: ignore[attr-defined]
        static(x)
    assert _graphs(journal) == 4


def test_functions_that_torch_traces_whole(journal: Journal) -> None:
    @torch._dynamo.nonstrict_trace  # type: ignore[attr-defined]
    def whole(x: Any) -> Any:
        return x.cos()

    compiled = braze.compile(lambda x: whole(x) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(X), X.cos() + 1)
    (record,) = journal.records()
    assert record.counters["kernels"] == 1


def test_substitutes_are_captured(journal: Journal) -> None:
    """And eager calls the original: the substitute here differs, to be told apart."""
    try:

        @braze.substitute_in_graph(operator.indexOf)
        def index_of(items: Any, wanted: Any, /) -> Any:
            return 70 + list(items).index(wanted)

        def function(x: Any) -> Any:
            return x * operator.indexOf([4, 5], 5)

        assert torch.equal(braze.compile(function, fullgraph=True)(X), X * 71)
        assert torch.equal(function(X), X * 1) and _graphs(journal) == 1
        with pytest.raises(UserError, match="already"):
            braze.substitute_in_graph(operator.indexOf)
    finally:
        SUBSTITUTES.pop(operator.indexOf)
    assert torch.equal(braze.compile(function, fullgraph=True)(X), X)
    with pytest.raises(UserError, match="function in C"):
        braze.substitute_in_graph(function)


# --- arguments and options ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.nonzero() * 2,
        lambda x: x[x > 0],
        lambda x: x * x.max().item(),
        lambda x: x.repeat(int(x.abs().argmax().item()) + 1),
        lambda x: torch.zeros(x.argmax().item() + 1),
    ],
)
def test_fullgraph_keeps_numbers_and_sizes_of_data(
    function: Callable[..., Any], journal: Journal
) -> None:
    compiled = braze.compile(function, fullgraph=True)
    for x in (X, X.flip(0) * 2):
        torch.testing.assert_close(compiled(x), function(x))
    assert _graphs(journal) == 1
    wants_breaks = {"capture_scalar_outputs": False, "capture_dynamic_output_shape_ops": False}
    if function(X).dim() != 1 or function(X).shape != X.shape:
        with pytest.raises(GraphBreakError):
            braze.compile(function, fullgraph=True, options=wants_breaks)(X)


def test_calling_conventions_of_explain_and_export() -> None:
    def function(x: Any, *, scale: float) -> Any:
        return x * scale

    told = braze.explain(function, X, scale=2.0)
    assert told.graph_count == braze.explain(function)(X, scale=2.0).graph_count == 1
    module, guards = braze.export(function, X, scale=2.0)
    assert torch.equal(module(X, scale=2.0), X * 2) and guards


def test_name_and_limit() -> None:
    compiled = braze.compile(model=lambda x, n: x * n, name="scaled", recompile_limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrazeWarning)
        for kind in ("a", "b", "c", "d"):
            compiled(X, len(kind) if kind < "c" else kind == "c")
            compiled(X.to(torch.float64), 2)
    row = braze.status()["scaled"]
    assert row.calls == 8 and row.entries <= 2
    module = braze.compile(torch.nn.Linear(4, 4), name="head")
    module(X)
    assert braze.status()["head"].calls == 1


def test_options_that_are_listed_are_taken() -> None:
    assert set(braze.list_mode_options()) == set(MODES)
    for mode, options in braze.list_mode_options().items():
        assert braze.list_mode_options(mode) == {mode: options}
        braze.compile(lambda x: x + 1, options=options)(X)
    assert braze.list_mode_options("default", dynamic=True)["default"]["dynamic"] is True
    with pytest.raises(InvalidOption, match="reduce-overhead"):
        braze.list_mode_options("reduce")
    for name in braze.list_options():
        value = getattr(braze.config, name)
        if name != "backend":
            braze.compile(lambda x: x + 1, options={name: value})


@pytest.mark.parametrize("name", sorted(INDUCTOR_OPTIONS))
def test_options_of_inductor(name: str) -> None:
    """Each means something here, or is named in a warning; and compiles."""
    for value in (True, False):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = in_brazes_words({name: value, "numerics": "default"})
        assert not found.keys() & INDUCTOR_OPTIONS and found["numerics"] == "default"
        assert [repr(name) in str(one.message) for one in told] in ([], [True])
        if not told:
            compiled = braze.compile(lambda x: torch.relu(x) * 2, options={name: value})
            assert torch.equal(compiled(X), torch.relu(X) * 2)


def test_options_of_inductor_say_brazes() -> None:
    assert in_brazes_words({"max_autotune": True}) == {"mode": "max-autotune"}
    assert in_brazes_words({"triton.cudagraphs": True}) == {"mode": "reduce-overhead"}
    unset = {"shape_padding": False, "layout_optimization": False}
    assert set(in_brazes_words(unset)["skip_passes"]) == {"align_products", "prefer_channels_last"}
    with pytest.raises(InvalidOption, match="max_fusion_size"):
        braze.compile(lambda x: x, options={"max_fusion_sise": 3})


def test_reorderable_functions_are_a_set() -> None:
    def log(text: str) -> None:
        said.append(text)

    said: list[str] = []
    listed = braze.config.reorderable_logging_functions
    with braze.config.patch(reorderable_logging_functions=()):
        braze.config.reorderable_logging_functions.add(log)
        braze.config.reorderable_logging_functions.update([log, print])
        assert braze.config.reorderable_logging_functions == (log, print)

        def function(x: Any) -> Any:
            log("in the middle")
            return x + 1

        assert torch.equal(braze.compile(function, fullgraph=True)(X), X + 1)
        assert said == ["in the middle"]
        braze.config.reorderable_logging_functions.discard(print)
        braze.config.reorderable_logging_functions.remove(log)
        with pytest.raises(KeyError):
            braze.config.reorderable_logging_functions.remove(log)
        assert braze.config.reorderable_logging_functions == ()
    assert braze.config.reorderable_logging_functions == listed


@IN_REGIONS
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_regions_around_what_is_compiled(region: Any, inner: bool, outer: bool) -> None:
    """The function that is compiled is the decorator's; the inner one decides."""

    def breaks(x: Any) -> Any:
        y = x + 1
        braze.graph_break()
        return y * 2

    for decorated in (region(outer)(region(inner)(breaks)), region(inner)(breaks)):
        if inner:
            with pytest.raises(GraphBreakError, match="error_on_graph_break"):
                braze.compile(decorated)(X)
        else:
            assert torch.equal(braze.compile(decorated)(X), (X + 1) * 2)
        assert not [*REGIONS]
        assert torch.equal(braze.compile(breaks)(X), (X + 1) * 2)  # nothing is left behind


@IN_REGIONS
def test_regions_made_outside(region: Any, journal: Journal) -> None:
    strict, lax = region(True), region(False)

    def function(x: Any, breaks_again: bool) -> Any:
        with strict:
            y = x + 1
            with lax:
                y = y * 2
                braze.graph_break()
            if breaks_again:
                braze.graph_break()
            y = y.sin()
        braze.graph_break()
        return y

    compiled = braze.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(X, False), ((X + 1) * 2).sin())
    assert _graphs(journal) == 3
    with pytest.raises(GraphBreakError, match="error_on_graph_break"):
        compiled(X, True)
    assert not [*REGIONS]
    torch.testing.assert_close(compiled(X, False), ((X + 1) * 2).sin())


@pytest.mark.parametrize("name", ["braze", "torch._dynamo"])
def test_marked_dimensions_of_size_one(name: str, journal: Journal) -> None:
    """Such a size has a graph of its own, as with torch.compile; in a range it is an error."""
    mark = (braze if name == "braze" else torch._dynamo).mark_dynamic  # type: ignore[attr-defined]
    compiled = braze.compile(lambda x: x.sin() * x.shape[0])
    for size in (1, 5, 0, 7, 1):
        x = torch.randn(size, 3)
        mark(x, 0)
        torch.testing.assert_close(compiled(x), x.sin() * size)
    assert _graphs(journal) == 3
    x = torch.randn(1, 3)
    mark(x, 0, min=1, max=8)
    with pytest.raises(braze.exc.ConstraintViolated):
        braze.compile(lambda x: x.cos())(x)
