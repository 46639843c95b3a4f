"""What Python refuses, and what its builtins do not call: found by CPython's own tests."""

from __future__ import annotations

import pathlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def result_of_init(x: torch.Tensor) -> Any:
    class Wrong:
        def __init__(self) -> None:
            return 10  # type: ignore[return-value]

    try:
        return x, Wrong()
    except TypeError as error:
        return x, str(error)


def except_star_of_no_exception(x: torch.Tensor) -> Any:
    found = []
    for kind in (42, ExceptionGroup, (ValueError, BaseExceptionGroup)):
        try:
            try:
                raise OSError("here")
            except* kind:  # type: ignore[misc]
                pass
        except TypeError as error:
            found.append(str(error))
    return x, found


def keywords_that_are_no_names(x: torch.Tensor) -> Any:
    found = []
    wrong: dict[Any, int] = {1: 2}
    for function in (dict, {}.update, types.SimpleNamespace, lambda **named: named):
        try:
            found.append(function(**wrong))
        except TypeError as error:
            found.append(str(error))
    return x, found


def property_without_a_getter(x: torch.Tensor) -> Any:
    class Closed:
        hidden = property(None, None, None, "a text")

    try:
        return x, Closed().hidden
    except AttributeError as error:
        return x, str(error)


def variables_of_a_number(x: torch.Tensor) -> Any:
    try:
        return x, vars(42)
    except TypeError as error:
        return x, str(error)


def items_without_a_key(x: torch.Tensor) -> Any:
    found = []
    for method in ({}.__getitem__, {}.__delitem__, {}.__setitem__, {}.get, {}.pop):
        try:
            method()  # type: ignore[call-arg, call-overload]
        except TypeError as error:
            found.append(str(error))
    return x, found


class Noting(dict[str, Any]):
    """A dict that notes what its methods are called for."""

    def __init__(self, **items: Any) -> None:
        self.noted: list[Any] = []
        dict.update(self, **items)

    def __setitem__(self, key: str, value: Any) -> None:
        self.noted.append(("set", key))
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: str) -> None:
        self.noted.append(("delete", key))
        dict.__delitem__(self, key)

    def __contains__(self, key: object) -> bool:
        self.noted.append(("contains", key))
        return dict.__contains__(self, key)


def _used(items: Noting) -> Any:
    found = [items.pop("a"), items.pop("z", 9), items.setdefault("b", 1), items.setdefault("c", 3)]
    items.update(d=4)
    dict.__setitem__(items, "e", 5)
    dict.__delitem__(items, "b")
    items["f"] = 6
    del items["e"]
    found.append("f" in items)
    return found, items.noted, list(items.items())


def methods_of_a_dict_made_here(x: torch.Tensor) -> Any:
    return x, _used(Noting(a=1, b=2))


def methods_of_a_dict_from_outside(x: torch.Tensor) -> Any:
    return x, _used(OUTSIDE[0])


OUTSIDE = [Noting(a=1, b=2)]


def sums_of_numbers(x: torch.Tensor) -> Any:
    tenths = [0.1] * 10
    mixed: list[Any] = [0.1, 0.2, 0.3, x[0], 0.1, 0.2]
    return x, sum(tenths), sum(iter(tenths), 1), sum([1, 2.5, True]), float(sum(mixed))


def version_of_python(x: torch.Tensor) -> Any:
    major, minor = sys.version_info[:2]
    return x, major, minor, tuple(sys.version_info) > (3,), sys.version_info.micro, sys.flags[0]


class _Based:
    __slots__ = ("held", "own")


class _Hiding(_Based):
    """As paths in Python 3.13: a property in the place of a base's slot."""

    __slots__ = ()

    @property
    def held(self) -> str:  # type: ignore[override]
        self.own.append("asked")
        return "computed"


def slot_behind_a_property(x: torch.Tensor) -> Any:
    made = _Hiding()
    made.own = []
    return x, made.held, made.own, len([made])


class _Hook:
    """A descriptor in the place of a special method."""

    asked = 0

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        def find(name: str) -> Any:
            self.asked += 1
            if name == "missing":
                raise AttributeError(name)
            return name

        return find


def hooks_that_are_descriptors(x: torch.Tensor) -> Any:
    hook = _Hook()

    class Always:
        __getattribute__ = hook

    class Missing:
        __getattr__ = hook
        present = 3

    found = [Always().present, Missing().present, Missing().other]
    for made in (Always(), Missing()):
        found.append(getattr(made, "missing", hook.asked))
    return x, found, hook.asked


@pytest.mark.parametrize(
    "program",
    [
        hooks_that_are_descriptors,
        items_without_a_key,
        slot_behind_a_property,
        sums_of_numbers,
        version_of_python,
        result_of_init,
        except_star_of_no_exception,
        keywords_that_are_no_names,
        property_without_a_getter,
        variables_of_a_number,
        methods_of_a_dict_made_here,
        methods_of_a_dict_from_outside,
    ],
)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    x = torch.ones(2)
    OUTSIDE[0] = Noting(a=1, b=2)
    expected = program(x)
    OUTSIDE[0] = Noting(a=1, b=2)
    explanation = braze.explain(program)(x)
    assert explanation.result[1:] == expected[1:]
    assert not explanation.break_count and not explanation.fallbacks, str(explanation)


def test_slots_behind_properties_leave_the_frame() -> None:
    def program(x: torch.Tensor) -> Any:
        made = _Hiding()
        made.own = []
        return x * 2, made

    for _ in range(2):
        made = braze.compile(program)(torch.ones(2))[1]
        assert made.own == [] and made.held == "computed" and made.own == ["asked"]


def test_paths() -> None:
    def program(x: torch.Tensor) -> Any:
        path = pathlib.PurePosixPath("/a") / "b.c"
        return x * 2, path, str(path), path.suffix

    for _ in range(2):
        assert braze.compile(program)(torch.ones(2))[1:] == program(torch.ones(2))[1:]


def test_a_proxy_whose_object_is_gone() -> None:
    def program(x: torch.Tensor, proxy: Any) -> Any:
        found = []
        for show in (str, "{}".format, len, lambda p: f"{p}"):
            try:
                found.append(show(proxy))
            except ReferenceError as error:
                found.append(str(error))
        return x + 1, found

    proxy = weakref.proxy(_Hook())
    assert (
        braze.compile(program, backend="eager")(torch.ones(2), proxy)[1]
        == (program(torch.ones(2), proxy)[1])
    )


def test_variables_of_a_frame() -> None:
    def program(x: torch.Tensor, scale: int) -> Any:
        shown = sys._getframe().f_locals
        before = sorted(shown)
        late = 2
        return x * scale, before, shown.get("late"), [*map(str, shown)][:2], late

    found = braze.compile(program, backend="eager")(torch.ones(2), 3)
    assert found[1:] == program(torch.ones(2), 3)[1:]
