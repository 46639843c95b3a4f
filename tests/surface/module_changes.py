"""Changes of one module, and of what its answers depend on elsewhere, between two questions.

python -m tests.surface.module_changes --part 0/8 --only parameters
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tests.surface.following import Change, entered, follow, replaced
from tests.surface.modules import (
    HELD,
    KINDS,
    Own,
    function_of,
    hook,
    questions,
    shortened,
    shown_answer,
)
from tests.surface.tensors import Tally, run_sweep

Apply = Callable[[Any], Any]


def _set(name: str, value: Callable[[], Any]) -> Apply:
    """An attribute of the module, put back afterwards."""

    def apply(module: Any) -> Callable[[], object]:
        missing = object()
        before = getattr(module, name, missing)
        setattr(module, name, value())
        if before is missing:
            return lambda: delattr(module, name)
        return lambda: setattr(module, name, before)

    return apply


def _deleted(name: str) -> Apply:
    def apply(module: Any) -> Callable[[], object]:
        before = getattr(module, name)
        delattr(module, name)
        return lambda: setattr(module, name, before)

    return apply


def _removable(register: Callable[[Any], Any]) -> Apply:
    return lambda module: register(module).remove


def _filled(module: Any) -> None:
    with torch.no_grad():
        module.weight.fill_(0.5)


def _data(module: Any) -> None:
    module.weight.data = torch.full((3, 3), 2.0)


def _trained(module: Any) -> None:
    module(torch.ones(2, 3)).sum().backward()


def _unhooked_entry(module: Any) -> Callable[[], object]:
    before = module._parameters.pop("bias")
    return lambda: module._parameters.update(bias=before)


def _first_again(module: Any) -> None:
    module._parameters["weight"] = module._parameters.pop("weight")


def _class(cls: type) -> Apply:
    def apply(module: Any) -> Callable[[], object]:
        before = type(module)
        module.__class__ = cls
        return lambda: setattr(module, "__class__", before)

    return apply


def _in_dict(module: Any) -> Callable[[], object]:
    module.__dict__["mark"] = 5
    return lambda: module.__dict__.pop("mark")


class Other(nn.Linear):
    """A class that a module is given."""

    def extra_repr(self) -> str:
        return "other"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def _plus(x: torch.Tensor) -> torch.Tensor:
    return x + 3


def _doubled(*args: Any) -> Any:
    return args[-1] * 2


def _of_all(register: Any) -> Apply:
    return lambda module: register(lambda m, a, *o: None).remove


_MODULES = nn.modules.module

ON_LINEAR: dict[str, Apply] = {
    "eval": lambda m: (m.eval(), m.train)[1],
    "training set": _set("training", lambda: False),
    "frozen": lambda m: (m.requires_grad_(False), m.requires_grad_)[1],
    "one parameter frozen": lambda m: m.bias.requires_grad_(False) is None,
    "bfloat16": lambda m: m.bfloat16() is None,
    "double": lambda m: m.double() is None,
    "to meta": lambda m: m.to("meta") is None,
    "weight replaced": _set("weight", lambda: nn.Parameter(torch.ones(3, 3))),
    "weight of another size": _set("weight", lambda: nn.Parameter(torch.ones(4, 3))),
    "weight written": _filled,
    "weight's data": _data,
    "no weight": _set("weight", lambda: None),
    "weight deleted": _deleted("weight"),
    "no bias": _set("bias", lambda: None),
    "bias deleted": _deleted("bias"),
    "bias taken from the dict": _unhooked_entry,
    "parameters in another order": _first_again,
    "a parameter more": _set("new", lambda: nn.Parameter(torch.ones(1))),
    "a parameter that is none": lambda m: m.register_parameter("new", None),
    "a buffer": lambda m: m.register_buffer("mean", torch.ones(3)),
    "a passing buffer": lambda m: m.register_buffer("mean", torch.ones(3), persistent=False),
    "a child": _set("child", nn.ReLU),
    "a child that is none": lambda m: m.add_module("child", None),
    "itself as a child": _set("child", lambda: nn.Sequential()),
    "an attribute": _set("mark", lambda: 1),
    "an attribute in the dict": _in_dict,
    "a tensor as attribute": _set("new", lambda: torch.ones(2)),
    "a field": _set("in_features", lambda: 4),
    "a method hidden": _set("parameters", lambda: lambda recurse=True: iter(())),
    "forward": _set("forward", lambda: _plus),
    "class": _class(Other),
    "gradients": _trained,
    "a weight shared": lambda m: setattr(m, "again", m.weight),
    "forward hook": _removable(lambda m: m.register_forward_hook(_doubled)),
    "hook before": _removable(lambda m: m.register_forward_pre_hook(hook)),
    "backward hook": _removable(lambda m: m.register_full_backward_hook(hook)),
    "backward hook before": _removable(lambda m: m.register_full_backward_pre_hook(hook)),
    "state hook": _removable(
        lambda m: m.register_state_dict_post_hook(lambda m, s, p, v: s.clear())
    ),
    "state hook before": _removable(lambda m: m.register_state_dict_pre_hook(hook)),
    "loading hook": _removable(lambda m: m.register_load_state_dict_pre_hook(hook)),
    "loading hook after": _removable(lambda m: m.register_load_state_dict_post_hook(hook)),
    "parametrization": lambda m: (
        nn.utils.parametrize.register_parametrization(m, "weight", nn.Identity()) is None
    ),
    "weight norm": lambda m: nn.utils.parametrizations.weight_norm(m) is None,
    "an empty init": lambda m: m.reset_parameters.__func__ is None,
    "hooks of all modules": _of_all(_MODULES.register_module_forward_hook),
    "hooks before all modules": _of_all(_MODULES.register_module_forward_pre_hook),
    "hooks of all gradients": _of_all(_MODULES.register_module_full_backward_hook),
    "hooks of all registrations": _of_all(_MODULES.register_module_parameter_registration_hook),
    "hooks of all buffers": _of_all(_MODULES.register_module_buffer_registration_hook),
    "hooks of all children": _of_all(_MODULES.register_module_module_registration_hook),
    "forward of the class": replaced(nn.Linear, "forward", lambda self, x: x - 5),
    "extra_repr of the class": replaced(nn.Linear, "extra_repr", lambda self: "replaced"),
    "__call__ of the class": replaced(nn.Linear, "__call__", lambda self, *a, **k: "called"),
    "an attribute of the class": replaced(nn.Linear, "mark", 7),
    "an attribute of all modules": replaced(nn.Module, "mark", 8),
    "__getattr__ of the class": replaced(
        nn.Linear,
        "__getattr__",
        lambda self, name: 9 if name == "mark" else nn.Module.__getattr__(self, name),
    ),
    "__len__ of the class": replaced(nn.Linear, "__len__", lambda self: 11),
    "__repr__ of modules": replaced(nn.Module, "__repr__", lambda self: "a module"),
    "named_parameters of modules": replaced(
        nn.Module, "named_parameters", lambda self, *a, **k: iter([("x", self.weight)])
    ),
    "linear of functional": replaced(nn.functional, "linear", lambda x, w, b=None: x * 4),
    "no_grad": entered(torch.no_grad),
    "autocast": entered(lambda: torch.autocast("cpu", torch.bfloat16)),
    "conversion overwrites": lambda m: (
        torch.__future__.set_overwrite_module_params_on_conversion(True),
        lambda: torch.__future__.set_overwrite_module_params_on_conversion(False),
    )[1],
    "conversion swaps": lambda m: (
        torch.__future__.set_swap_module_params_on_conversion(True),
        lambda: torch.__future__.set_swap_module_params_on_conversion(False),
    )[1],
}
ON_OWN: dict[str, Apply] = {
    "child replaced": _set("child", nn.ReLU),
    "child without bias": _set("child.bias", lambda: None),
    "child's weight": lambda m: setattr(m.child, "weight", nn.Parameter(torch.ones(3, 3))),
    "child in evaluation": lambda m: (m.child.eval(), m.child.train)[1],
    "child deleted": _deleted("child"),
    "buffer replaced": _set("mean", lambda: torch.ones(3)),
    "buffer that is none": _set("mean", lambda: None),
    "buffer written": lambda m: m.mean.add_(1) is None,
    "buffer becomes passing": lambda m: m._non_persistent_buffers_set.add("mean"),
    "a number": _set("number", lambda: 5),
    "a number of the class": replaced(Own, "number", 6),
    "a list": lambda m: m.plain.append(3),
    "a property": replaced(Own, "scale", property(lambda self: 0.5)),
    "extra state": replaced(Own, "get_extra_state", lambda self: {"number": 9}),
    "absent comes": _set("absent", lambda: torch.ones(3)),
}
ON_SEQUENCE: dict[str, Apply] = {
    "appended": lambda m: m.append(nn.ReLU()) is None,
    "an item replaced": lambda m: m.__setitem__(0, nn.Identity()),
    "an item deleted": lambda m: m.__delitem__(1),
}


def changes() -> dict[str, Change]:
    """All changes by name."""
    on = {"plain": ON_LINEAR, "own": ON_OWN, "sequence": ON_SEQUENCE}
    return {
        name: Change(KINDS[kind], apply)
        for kind, some in on.items()
        for name, apply in some.items()
    }


CHANGED_WAYS = {"passed in": "x", "found outside": "HELD[0]"}


def sweep(
    asked: Iterable[str], ways: Iterable[str] = CHANGED_WAYS, tally: Tally | None = None
) -> Tally:
    """Put questions around all changes."""
    tally = tally or Tally()
    for text in asked:
        for way in ways:
            follow(text, way, function_of(text, CHANGED_WAYS[way]), changes(), answer, tally)
    return tally


def answer(function: Callable[[Any, Any], Any], module: Any) -> str:
    """The answer as text, and what became of the module."""
    HELD[:] = [module]
    return shown_answer(function, module)


def main() -> int:
    """Put questions to modules that change."""
    return run_sweep(__doc__, CHANGED_WAYS, questions(), sweep, lambda found: str(shortened(found)))


if __name__ == "__main__":
    sys.exit(main())
