"""Guards and replays read the program's objects without its hooks: `__getattribute__`,
`__getattr__`, properties and `__class__` are called as often as in eager, before a change of the
object or its class and after it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

LOG: list[str] = []


class Plain:
    def __init__(self) -> None:
        self.value = 1


class Watched:
    def __init__(self) -> None:
        object.__setattr__(self, "value", 2)

    def __getattribute__(self, name: str) -> Any:
        LOG.append(f"watched {name}")
        return object.__getattribute__(self, name)


class WatchedSlot(Watched):
    __slots__ = ("other",)

    def __init__(self) -> None:
        self.value = 3
        self.other = 4


class Lacking(Plain):
    def __getattr__(self, name: str) -> Any:
        LOG.append(f"lacking {name}")
        return 5


class WatchedModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.ones(2))
        self.layer = torch.nn.Linear(2, 2)

    def __getattribute__(self, name: str) -> Any:
        LOG.append(f"module {name}")
        return super().__getattribute__(name)


class LackingModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.ones(2))
        self.layer = torch.nn.Linear(2, 2)

    def __getattr__(self, name: str) -> Any:
        LOG.append(f"lacking module {name}")
        return super().__getattr__(name)


def _getattribute(self: Any, name: str) -> Any:
    LOG.append(f"new {name}")
    return object.__getattribute__(self, name)


def _getattr(self: Any, name: str) -> Any:
    LOG.append(f"new lacking {name}")
    return 7


CHANGES: dict[str, Callable[[type, Any], object]] = {
    "nothing": lambda cls, owner: None,
    "getattribute": lambda cls, owner: setattr(cls, "__getattribute__", _getattribute),
    "getattr": lambda cls, owner: setattr(cls, "__getattr__", _getattr),
    "getattr and gone": lambda cls, owner: (
        setattr(cls, "__getattr__", _getattr),
        type(owner).__delattr__(owner, "value"),
    ),
    "property": lambda cls, owner: setattr(
        cls, "value", property(lambda self: LOG.append("property") or 9)
    ),
    "replaced": lambda cls, owner: setattr(owner, "value", torch.nn.Parameter(torch.zeros(2))),
    "gone": lambda cls, owner: delattr(owner, "value"),
}
STEPS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "read": lambda x, owner: x * owner.value,
    "asked": lambda x, owner: x.sin() * owner.value if hasattr(owner, "value") else x,
    "absent": lambda x, owner: x.sin() * getattr(owner, "q", 3) if hasattr(owner, "q") else x,
}
CLASSES = [Plain, Watched, WatchedSlot, Lacking, WatchedModule, LackingModule]


def _play(step: Callable[..., Any], base: type, change: str, is_compiled: bool) -> list[str]:
    class Changing(base):  # type: ignore[misc, valid-type]
        pass

    owner = Changing()
    run = braze.compile(step, backend="eager") if is_compiled else step
    LOG.clear()
    for number in range(5):
        if number == 3:
            CHANGES[change](Changing, owner)
        try:
            LOG.append(str(run(torch.ones(2), owner).tolist()))
        except (AttributeError, TypeError) as error:
            LOG.append(repr(error))
    return list(LOG)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("base", CLASSES, ids=lambda cls: cls.__name__)
def test_hooks_are_called_as_in_eager(base: type, change: str) -> None:
    for step in STEPS.values():
        braze.reset()
        assert _play(step, base, change, True) == _play(step, base, change, False)


def test_compiler_asks_nothing_of_watched_objects() -> None:
    asked: set[str] = set()

    def watch(self: Any, name: str) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if "braze" in caller.replace(__file__, ""):
            asked.add(f"{caller}:{sys._getframe(1).f_lineno} {name}")
        return object.__getattribute__(self, name)

    kinds = [type(base.__name__, (base,), {}) for base in (Plain, list, dict, torch.nn.Module)]
    for kind in kinds:
        kind.__getattribute__ = watch  # type: ignore[method-assign, assignment]
    owner, items, table, module = (kind() for kind in kinds)
    items.extend([1, 2])
    table.update(a=1)
    module.layer = torch.nn.Linear(2, 2)
    keyed = {owner: 1}

    def step(x: torch.Tensor) -> Any:
        y = module.layer(x) * owner.value + items[0] + table["a"] + keyed[owner]
        for item in items:
            y = y + item
        module.seen, owner.seen, table["b"] = 1, isinstance(owner, Plain), 2
        print(end="")
        return y + owner.value, owner, [owner], {"k": items}

    braze.reset()
    run = braze.compile(step)
    for _ in range(20):
        run(torch.ones(2))
    assert not asked
    assert braze.explain(step)(torch.ones(2)).graph_count >= 1
