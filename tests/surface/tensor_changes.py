"""Changes of one tensor, and of what its answers depend on elsewhere, between two questions.

python -m tests.surface.tensor_changes --part 0/8 --only grad
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from tests.surface.contexts import Counting, Doubling
from tests.surface.following import Change, entered, follow, replaced, set_by
from tests.surface.tensor_kinds import EVERY, Plain
from tests.surface.tensor_questions import Question, questions
from tests.surface.tensors import (
    HELD,
    WAYS,
    Tally,
    function_of,
    run_sweep,
    shown_answer,
)

_KEPT: list[Any] = []


def _gradient(x: Any) -> None:
    x.grad = torch.ones_like(x)


def _twice(change: Callable[[Any], object]) -> Callable[[Any], object]:
    def apply(x: Any) -> None:
        change(x)
        change(x)

    return apply


def _without_gradients(change: Callable[[Any], object]) -> Callable[[Any], object]:
    def apply(x: Any) -> None:
        with torch.no_grad():
            change(x)

    return apply


def _data(make: Callable[[], Any]) -> Callable[[Any], object]:
    def apply(x: Any) -> None:
        x.data = make()

    return apply


def _attribute(name: str, value: Any) -> Callable[[Any], Callable[[], object]]:
    def apply(x: Any) -> Callable[[], object]:
        setattr(x, name, value)
        return lambda: delattr(x, name)

    return apply


def _class(cls: type) -> Callable[[Any], Callable[[], object]]:
    def apply(x: Any) -> Callable[[], object]:
        before = type(x)
        x.__class__ = cls
        return lambda: setattr(x, "__class__", before)

    return apply


def _hook(x: Any) -> Callable[[], object]:
    return x.register_hook(lambda g: g * 2).remove  # type: ignore[no-any-return]


def _late_hook(x: Any) -> Callable[[], object]:
    return x.register_post_accumulate_grad_hook(lambda p: None).remove  # type: ignore[no-any-return]


def _swapped(x: Any) -> None:
    gc.collect()  # whatever still refers to the tensor would forbid it
    torch.utils.swap_tensors(x, torch.arange(8.0).reshape(4, 2))


def _referred(x: Any) -> Callable[[], object]:
    _KEPT.append(weakref.ref(x))
    return _KEPT.clear


def _viewed(x: Any) -> Callable[[], object]:
    _KEPT.append(x.view(-1))
    return _KEPT.clear


def _written_by_view(x: Any) -> None:
    x.view(-1)[0] = 9


def _backward(x: Any) -> None:
    (x * x).sum().backward()


def _by_numpy(x: Any) -> None:
    x.detach().numpy()[...] = 7


def _aliased(x: Any) -> Callable[[], object]:
    _KEPT.append(x.detach())
    return _KEPT.clear


def _reset_gradient(x: Any) -> None:
    x.grad = None


def _zero_gradient(x: Any) -> None:
    x.grad.zero_()


def _own_gradient(x: Any) -> None:
    x.grad = x.detach()


def _requires(x: Any) -> Callable[[], object]:
    x.requires_grad_()
    return lambda: x.requires_grad_(False)


def _frozen(x: Any) -> Callable[[], object]:
    x.requires_grad_(False)
    return lambda: x.requires_grad_(True)


_ON_PLAIN: dict[str, Callable[[Any], Any]] = {
    "requires_grad_": _requires,
    "fill_": lambda x: x.fill_(4),
    "mul_, twice": _twice(lambda x: x.mul_(2)),
    "an element": _written_by_view,
    "data.fill_": lambda x: x.data.fill_(5),
    "written by numpy": _by_numpy,
    "version": torch.autograd.graph.increment_version,
    "data of another shape": _data(lambda: torch.ones(3, 4)),
    "data of other strides": _data(lambda: torch.arange(6.0).view(3, 2).t()),
    "data of another dtype": _data(lambda: torch.ones(2, 3, dtype=torch.float64)),
    "data with an offset": _data(lambda: torch.arange(9.0)[3:].view(2, 3)),
    "data of a row": _data(lambda: torch.arange(3.0).expand(2, 3)),
    "empty data": _data(lambda: torch.empty(0, 3)),
    "data without dimensions": _data(lambda: torch.tensor(2.0)),
    "resize_": lambda x: x.resize_(3, 3).fill_(2),
    "resize_ to less": lambda x: x.resize_(2),
    "resize_ to nothing": lambda x: x.resize_(0),
    "set_": lambda x: x.set_(torch.arange(4.0)),
    "set_ to nothing": lambda x: x.set_(),
    "set_ to a part": lambda x: x.set_(x.untyped_storage(), 1, (2, 2), (2, 1)),
    "transpose_": lambda x: x.transpose_(0, 1),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 1)),
    "swap_tensors": _swapped,
    "share_memory_": lambda x: x.share_memory_(),
    "storage filled": lambda x: x.untyped_storage().fill_(0),
    "storage resized": lambda x: x.untyped_storage().resize_(64),
    "storage emptied": lambda x: x.set_(x.untyped_storage(), 0, (0,)).untyped_storage().resize_(0),
    "an attribute": _attribute("mark", 1),
    "an attribute that is a tensor": _attribute("mark", torch.ones(1)),
    "a method": _attribute("sum", lambda *a, **k: "replaced"),
    "a hidden attribute": _attribute("is_cpu_", False),
    "class": _class(Plain),
    "class of parameters": _class(nn.Parameter),
    "class of buffers": _class(nn.Buffer),
    "a weak reference": _referred,
    "a view": _viewed,
    "an alias": _aliased,
    "gradient": _gradient,
    "gradient that is itself": _own_gradient,
    "becomes non-leaf": lambda x: x.mul_(torch.ones(3, requires_grad=True)),
    "copy_": lambda x: x.copy_(torch.zeros(2, 3)),
    "neg_": lambda x: x.neg_(),
}
_ON_LEAF: dict[str, Callable[[Any], Any]] = {
    "frozen": _frozen,
    "written without gradients": _without_gradients(lambda x: x.add_(1)),
    "data of a leaf": _data(lambda: torch.ones(3, 2)),
    "gradient of a leaf": _gradient,
    "hook": _hook,
    "late hook": _late_hook,
    "backward": _backward,
    "backward, twice": _twice(_backward),
    "retain_grad of a leaf": lambda x: x.retain_grad(),
}
_ON_GRADIENT: dict[str, Callable[[Any], Any]] = {
    "gradient removed": _reset_gradient,
    "gradient zeroed": _zero_gradient,
    "gradient's data": lambda x: setattr(x.grad, "data", torch.full((2, 3), 3.0)),
}
_ON_NON_LEAF: dict[str, Callable[[Any], Any]] = {
    "detach_": lambda x: x.detach_(),
    "retain_grad": lambda x: x.retain_grad(),
    "hook of a non-leaf": _hook,
    "used up": lambda x: x.sum().backward(),
    "in-place operator": lambda x: x.exp_(),
}
_ON_VIEW: dict[str, Callable[[Any], Any]] = {
    "base written": lambda x: x._base.fill_(3),
    "view written": lambda x: x.fill_(3),
    "base requires gradients": lambda x: x._base.requires_grad_(),
}
_ON_PARAMETER: dict[str, Callable[[Any], Any]] = {
    "parameter frozen": _frozen,
    "parameter's data": _data(lambda: torch.ones(4, 3)),
    "parameter's class": _class(Plain),
    "parameter's gradient": _gradient,
    "parameter's attribute": _attribute("mark", 1),
}
_ON_SUBCLASS: dict[str, Callable[[Any], Any]] = {
    "attribute of the subclass": replaced(Plain, "mark", 1),
    "method of the subclass": replaced(Plain, "size", lambda self, *a: "replaced"),
    "operator of the subclass": replaced(Plain, "__add__", lambda self, other: "added"),
    "class put back": _class(Tensor),
    "written to": lambda x: x.fill_(1),
}


def _anomaly(on: bool) -> None:
    torch.autograd.set_detect_anomaly(on, True)


_PRINT = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "profile": "default"}


def _print_options(options: dict[str, Any]) -> None:
    torch.set_printoptions(**options)


_same = lambda value: value  # noqa: E731

# What is changed elsewhere: the process's modes and settings, and what classes hold.
ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "no_grad": entered(torch.no_grad),
    "inference_mode": entered(torch.inference_mode),
    "autocast": entered(lambda: torch.autocast("cpu", torch.bfloat16)),
    "dual level": entered(forward_ad.dual_level),
    "a function mode": entered(Doubling),
    "a dispatch mode": entered(Counting),
    "DisableTorchFunction": entered(torch._C.DisableTorchFunction),
    "DisableTorchFunctionSubclass": entered(torch._C.DisableTorchFunctionSubclass),
    "saved tensors hooks": entered(lambda: torch.autograd.graph.saved_tensors_hooks(_same, _same)),
    "default device": entered(lambda: torch.device("meta")),
    "default dtype": set_by(torch.set_default_dtype, torch.float64, torch.float32),
    "anomaly detection": set_by(_anomaly, True, False),
    "deterministic": set_by(torch.use_deterministic_algorithms, True, False),
    "deterministic, warning": set_by(torch.set_deterministic_debug_mode, "warn", "default"),
    "print options": set_by(_print_options, {"precision": 1, "sci_mode": True}, _PRINT),
    "matmul precision": set_by(torch.set_float32_matmul_precision, "medium", "highest"),
    "threads": set_by(torch.set_num_threads, 2, torch.get_num_threads()),
    "denormals": set_by(torch.set_flush_denormal, True, False),
    "warn always": set_by(torch.set_warn_always, True, False),
    "multithreading": entered(lambda: torch.autograd.set_multithreading_enabled(False)),
    "view replay": entered(lambda: torch.autograd._force_original_view_tracking(True)),
    "an attribute of all tensors": replaced(Tensor, "mark", 3),
    "an attribute of parameters": replaced(nn.Parameter, "mark", 4),
    "collector": lambda x: (gc.disable(), gc.enable)[1],
    "recursion limit": set_by(sys.setrecursionlimit, 5000, sys.getrecursionlimit()),
    "seed": lambda x: torch.manual_seed(7) and None,
}


def changes() -> dict[str, Change]:
    """All changes by name."""
    on = {
        "plain": _ON_PLAIN,
        "leaf": _ON_LEAF,
        "leaf with a gradient": _ON_GRADIENT,
        "non-leaf": _ON_NON_LEAF,
        "view": _ON_VIEW,
        "parameter": _ON_PARAMETER,
        "subclass": _ON_SUBCLASS,
    }
    found = {
        name: Change(EVERY[kind], apply)
        for kind, some in on.items()
        for name, apply in some.items()
    }
    for name, apply in ELSEWHERE.items():
        found[f"{name}, plain"] = Change(EVERY["plain"], apply)
        found[f"{name}, leaf"] = Change(EVERY["leaf"], apply)
    return found


CHANGED_WAYS = ("the input", "found outside", "a view of it")


def answer(function: Callable[..., Any], x: Any) -> str:
    """The answer as text, what became of the tensor, and what hangs from it."""
    HELD[:] = [x]
    said = shown_answer(function, x)
    return f"{said}; {_hanging(x)}"


def _hanging(x: Any) -> str:
    hooks = len(x._backward_hooks or ()) if isinstance(x, Tensor) else 0
    gradient = x.grad if x.is_leaf else None
    numbers = None if gradient is None or gradient.is_meta else gradient.tolist()
    return f"{x.requires_grad} {x.is_leaf} {hooks} hooks, gradient {numbers}, {sorted(vars(x))}"


def sweep(
    asked: Iterable[Question], ways: Iterable[str] = CHANGED_WAYS, tally: Tally | None = None
) -> Tally:
    """Put questions around all changes."""
    tally = tally or Tally()
    for question in asked:
        for way in ways:
            if way == "the input" or not question.is_operator:
                function = function_of(question, WAYS[way])
                follow(question.text, way, function, changes(), answer, tally)
    return tally


def main() -> int:
    """Put questions to tensors that change."""
    return run_sweep(__doc__, CHANGED_WAYS, questions(), sweep, lambda found: str(found)[:800])


if __name__ == "__main__":
    sys.exit(main())
