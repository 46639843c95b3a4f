"""Which operators may be recorded, dropped, merged: by their schemas, not by their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives

import braze
from braze.ir.graphs.op_effects import has_effects, hides_effects, is_asynchronous
from braze.trace import Journal


def operators(*namespaces: str) -> Iterator[Any]:
    """Every overload of these namespaces that Python can name."""
    for schema in torch._C._jit_get_all_schemas():
        namespace, name = schema.name.split("::")
        if namespace not in namespaces:
            continue
        packet = getattr(getattr(torch.ops, namespace), name, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if isinstance(overload, torch._ops.OpOverload):
            yield overload


def test_a_process_group_hides_effects() -> None:
    found = list(operators("c10d", "symm_mem", "c10d_functional"))
    assert len(found) > 40 and all(map(hides_effects, found))


def test_objects_of_classes_hide_effects() -> None:
    found = [
        op for op in operators("quantized", "profiler", "aten") if "__torch__" in str(op._schema)
    ]
    assert len(found) > 50 and all(map(hides_effects, found))


def test_only_torchs_own_are_pure() -> None:
    pure = {op.namespace for op in operators("aten", "prims", "mkldnn", "_c10d_functional")
            if not has_effects(op)}  # fmt: skip
    assert pure == {"aten", "prims"}


def test_what_gives_nothing_has_effects() -> None:
    found = [op for op in operators("aten") if not op._schema.returns]
    assert len(found) > 20 and all(map(has_effects, found))


def test_collectives_begin_and_end() -> None:
    found = {op._schema.name.partition("::")[2]: op for op in operators("_c10d_functional")}
    assert not is_asynchronous(found.pop("wait_tensor"))
    assert not is_asynchronous(found.pop("_wrap_tensor_autograd"))
    assert all(map(is_asynchronous, found.values()))


@pytest.fixture
def counted() -> Iterator[tuple[Any, list[float]]]:
    calls: list[float] = []
    with torch.library._scoped_library("test_op_effects", "FRAGMENT") as library:
        library.define("note(Tensor x, float tag) -> Tensor")

        def note(x: torch.Tensor, tag: float) -> torch.Tensor:
            calls.append(tag)
            return x + tag

        library.impl("note", note, "CPU")
        library.impl("note", lambda x, tag: torch.empty_like(x), "Meta")
        yield torch.ops.test_op_effects.note, calls


@pytest.mark.parametrize("backend", ["braze", "eager", "aot_eager"])
def test_unused_calls_stay_in_order(
    counted: tuple[Any, list[float]], backend: str, journal: Journal
) -> None:
    note, calls = counted

    def program(x: torch.Tensor) -> torch.Tensor:
        first = note(x, 1.0)
        note(x, 2.0)
        note(x, 2.0)  # as the one before: none stands for both
        last = note(x, 3.0)
        return last * 2 + first

    x = torch.ones(4)
    expected = program(x)
    order = calls[:]
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        calls.clear()
        assert torch.equal(compiled(x), expected)
        assert calls == order
    assert [record.outcome for record in journal.records()] == ["graph"]


def test_unused_calls_stay_where_gradients_flow(counted: tuple[Any, list[float]]) -> None:
    note, calls = counted

    def program(x: torch.Tensor) -> torch.Tensor:
        note(x.detach(), 1.0)
        return (x.sin() * x).sum()

    compiled = braze.compile(program)
    for _ in range(3):
        calls.clear()
        x = torch.ones(4, requires_grad=True)
        compiled(x).backward()
        assert calls == [1.0]


def test_a_branch_with_effects_is_not_made_for_both(counted: tuple[Any, list[float]]) -> None:
    note, calls = counted

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: note(x, 1.0), lambda x: note(x, 2.0), (x,))

    compiled = braze.compile(program)
    for sign in (1.0, -1.0, 1.0):
        calls.clear()
        assert torch.equal(compiled(torch.ones(4) * sign), program(torch.ones(4) * sign))
        assert calls[0] == calls[1] and len(calls) == 2


def test_an_assertion_in_a_branch_is_its_own() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x > 0).all())
            return x.sqrt()

        return torch.cond((x > 0).all(), positive, lambda x: x * 0, (x,))

    compiled = braze.compile(program)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), program(x))


def test_an_assertion_of_nothing_used_raises() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all())
        return x + 1

    compiled = braze.compile(program, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError):
        compiled(-torch.ones(3))
