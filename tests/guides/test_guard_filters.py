"""The option `guard_filter_fn`, as `torch.compiler`'s documentation shows its filters: a change
that a skipped guard would have seen makes no entry, and any other does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from braze.errors import InvalidOption
from braze.trace import Journal

FLAG = True


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.activation = torch.nn.Linear(3, 3), torch.nn.LeakyReLU(0.1)
        self.factor = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.linear(x)) * self.factor
        return y + 1 if FLAG else y


def _change(name: str, model: Model, patch: pytest.MonkeyPatch) -> torch.Tensor:
    """Change one thing; the tensor to call the model with."""
    if name == "global":
        patch.setitem(globals(), "FLAG", False)
    elif name == "attribute":
        model.factor = 5
    elif name == "builtin":
        model.activation.negative_slope = 0.7
    elif name == "parameter":
        model.linear.weight = torch.nn.Parameter(torch.rand(3, 3))
    elif name == "dtype":
        model.double()
    sizes = (5, 3) if name == "shape" else (2, 3)
    return torch.rand(sizes, dtype=model.linear.weight.dtype) - 0.5


def _by_name(entries: Sequence[Any]) -> list[bool]:
    assert all(entry.value is True for entry in entries if entry.name == "G['FLAG']")
    return [entry.name != "G['FLAG']" for entry in entries]


CHANGES = ("global", "attribute", "builtin", "parameter", "shape", "dtype")
# A filter, and the changes that torch.compile does not see with it either.
UNSEEN: dict[str, tuple[str, ...]] = {
    "keep_portable_guards_unsafe": ("global", "attribute", "builtin"),
    "skip_guard_on_inbuilt_nn_modules_unsafe": ("builtin",),
    "skip_guard_on_all_nn_modules_unsafe": ("attribute", "builtin"),
    "keep_tensor_guards_unsafe": ("global", "attribute", "builtin"),
    "skip_guard_on_globals_unsafe": ("global",),
    "skip_all_guards_unsafe": ("global", "attribute", "builtin"),
    "by name": ("global",),
    "": (),
}


def _filter(name: str) -> Callable[..., Any] | None:
    return _by_name if name == "by name" else getattr(torch.compiler, name, None)


@pytest.mark.parametrize("name", UNSEEN)
def test_filters_skip_what_theirs_skip(
    name: str, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    for change in CHANGES:
        model, x = Model(), torch.rand(2, 3) - 0.5
        options = {"guard_filter_fn": _filter(name)} if name else {}
        compiled = braze.compile(model, backend="eager", options=options)
        before = len(journal.records())
        torch.testing.assert_close(compiled(x), model(x))
        with monkeypatch.context() as patch:
            y = _change(change, model, patch)
            found, right = compiled(y), model(y)
            unseen = change in UNSEEN[name]
            assert torch.allclose(found, right) != unseen, change
        made = len(journal.records()) - before
        again = not unseen and change != "parameter"  # one of the same kind serves
        assert made == 1 + again, change


def test_skipped_guards_are_not_in_the_report() -> None:
    kinds = []
    for keep in (None, torch.compiler.keep_tensor_guards_unsafe):
        compiled = braze.compile(Model(), options={"guard_filter_fn": keep})
        guards = braze.explain(compiled, torch.rand(2, 3)).guards
        kinds.append({kind.rstrip(":") for text in guards for kind in text.split()[:2]})
    assert {"TYPE_MATCH", "TENSOR_MATCH", "AMBIENT"} <= kinds[0]
    assert "TENSOR_MATCH" in kinds[1] and kinds[1].isdisjoint({"TYPE_MATCH", "AMBIENT"})


def test_sizes_are_asked_whatever_filters_say(journal: Journal) -> None:
    """A kernel for 64 rows that gets 2 would read past the end."""
    options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    compiled = braze.compile(lambda x, y: (x.sin() + y).sum(1), options=options, dynamic=False)
    for rows, kind in ((64, torch.float32), (2, torch.float32), (2, torch.float64)):
        x, y = torch.rand(rows, 3, dtype=kind), torch.rand(rows, 3, dtype=kind)
        torch.testing.assert_close(compiled(x, y), (x.sin() + y).sum(1))
    assert len(journal.records()) == 3


@pytest.mark.parametrize("answer", [[], [1], None])
def test_one_bool_a_guard(answer: Any) -> None:
    def keep(entries: Sequence[Any]) -> Any:
        return [None for _ in entries] if answer is None else answer

    compiled = braze.compile(lambda x: x + 1, options={"guard_filter_fn": keep})
    with pytest.raises(InvalidOption, match="one bool a guard"):
        compiled(torch.rand(3))


def test_filters_are_callables() -> None:
    with pytest.raises(InvalidOption, match="guard_filter_fn"):
        braze.compile(lambda x: x, options={"guard_filter_fn": 3})


@pytest.mark.parametrize("keep", (lambda entries: None, list, lambda entries: 1 / 0))
def test_a_filter_that_fails_is_the_users_fault(keep: Any) -> None:
    compiled = braze.compile(lambda x: x + 1, options={"guard_filter_fn": keep})
    with pytest.raises(InvalidOption, match="guard_filter_fn"):
        compiled(torch.ones(2))
