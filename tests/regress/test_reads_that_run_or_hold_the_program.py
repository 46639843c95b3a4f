"""What capture asks for runs no code of the program's that eager does not run, and keeps nothing
alive that eager lets go."""

from __future__ import annotations

import abc
import gc
import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import braze
from braze.tracing.fake_tensor_queries import QUESTIONS, Kept

_LOG: list[str] = []


def _lives(compile_it: Callable[[Any], Any]) -> list[Any]:
    """What a call says of a method that was replaced since."""
    space: dict[str, Any] = {}
    exec("class Speaker:\n    def say(self): return 2\n", space)
    cls = space["Speaker"]
    speaker = cls()
    reference = weakref.WeakMethod(speaker.say)

    def step(x: torch.Tensor) -> Any:
        method = reference()
        number = method() if method is not None else -1
        del method
        return x.sin() + number, number

    run = compile_it(step)
    said = [run(torch.ones(2))[1], run(torch.ones(2))[1]]
    cls.say = lambda self: 3
    gc.collect()
    said.append(run(torch.ones(2))[1])
    return said


def test_method_behind_weak_reference_ends() -> None:
    expected = _lives(lambda step: step)
    assert expected == [2, 2, -1]
    assert _lives(lambda step: braze.compile(step, backend="aot_eager")) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_level_at_changing_sizes(backend: str) -> None:
    def step(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
            return forward_ad.unpack_dual(dual.sin()).tangent

    compiled = braze.compile(step, backend=backend)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs eagerly")
        for size in (3, 4, 5):
            x = torch.arange(float(size))
            assert torch.equal(compiled(x), step(x))


def _logs(run: Callable[[], Any]) -> list[str]:
    _LOG.clear()
    run()
    return list(_LOG)


def test_hook_of_registered_class_runs_as_often() -> None:
    def of(compile_it: Callable[[Any], Any]) -> list[str]:
        class Hooked(abc.ABC):  # noqa: B024
            @classmethod
            def __subclasshook__(cls, other: type) -> Any:
                _LOG.append(other.__name__)
                return NotImplemented

        Hooked.register(int)
        run = compile_it(lambda x, n: (x + 1, isinstance(n, Hooked), issubclass(dict, Hooked)))
        return _logs(lambda: [run(torch.ones(2), 2) for _ in range(3)])

    assert of(lambda step: braze.compile(step, backend="eager")) == of(lambda step: step)


@pytest.mark.parametrize("is_asked_before", [False, True])
def test_hook_runs_behind_what_comes_before_it(is_asked_before: bool) -> None:
    """What a hook writes is not seen by a copy that the frame made earlier."""

    def of(compile_it: Callable[[Any], Any]) -> Any:
        class Hooked(abc.ABC):  # noqa: B024
            @classmethod
            def __subclasshook__(cls, other: type) -> Any:
                _LOG.append(other.__name__)
                return NotImplemented

        def step(x: torch.Tensor, n: int) -> tuple[torch.Tensor, list[str], bool]:
            before = list(_LOG)
            return x + 1, before, isinstance(n, Hooked)

        _LOG.clear()
        if is_asked_before:
            isinstance(2, Hooked)
        run = compile_it(step)
        return [run(torch.ones(2), n)[1:] for n in (2, 3, 4)], list(_LOG)

    assert of(lambda step: braze.compile(step, backend="eager")) == of(lambda step: step)


class _Counted(str):
    def __hash__(self) -> int:
        _LOG.append("hash")
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        _LOG.append("eq")
        return str.__eq__(self, other)


class _Holder:
    pi = 3


@pytest.mark.parametrize("use", [getattr, hasattr, delattr, object.__getattribute__])
@pytest.mark.parametrize("owner", [math, _Holder])
def test_name_is_compared_as_often(use: Any, owner: Any) -> None:
    if use in (delattr, object.__getattribute__):
        if owner is math:
            return
        owner = None

    def step(x: torch.Tensor) -> Any:
        target = owner
        if target is None:
            target = _Holder()
            target.pi = 4
        return x + 1, use(target, _Counted("pi"))

    step(torch.ones(2))
    expected = _logs(lambda: step(torch.ones(2)))
    compiled = braze.compile(step, backend="eager")
    assert _logs(lambda: compiled(torch.ones(2))) == expected


_METADATA = sorted(
    name
    for name, kept in QUESTIONS.items()
    if kept is Kept.METADATA and hasattr(torch.Tensor, name)
)


@pytest.mark.parametrize("name", _METADATA)
def test_question_is_answered_at_any_size(name: str) -> None:
    """No refusal of C++ to read a symbolic size reaches the program as its exception."""

    def step(x: torch.Tensor) -> Any:
        found = getattr(x, name)
        try:
            return x + 1, found() if callable(found) else found
        except (TypeError, RuntimeError) as error:
            return x + 2, type(error).__name__

    compiled = braze.compile(step, backend="eager", dynamic=True)
    for size in (3, 4):
        x = torch.ones(size, 5)
        value, answer = compiled(x)
        expected, wanted = step(x)
        assert torch.equal(value, expected)
        assert answer == wanted
        assert type(answer) is type(wanted)
