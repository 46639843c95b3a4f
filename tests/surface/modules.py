"""The surface of `nn.Module`: each attribute and method, with arguments, of modules of all kinds.

Each question is put twice to every module (passed in, found outside, copied, held by another
one). What becomes of the module (tensors, hooks, flags, what its call gives) is compared as well.

    python -m tests.surface.modules --part 0/8 --only register
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

import braze
from braze.options import config
from tests.recorded import recorded
from tests.surface.tensor_questions import namespace
from tests.surface.tensors import Difference, Tally, run_sweep

Make = Callable[[], Any]


class Own(nn.Module):
    """A program's own module: parameters, a buffer, a child, a plain attribute, a property."""

    number = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("passing", torch.zeros(3), persistent=False)
        self.child = nn.Linear(3, 3)
        self.absent: torch.Tensor | None = None
        self.plain = [1, 2]

    @property
    def scale(self) -> float:
        return float(self.number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x @ self.weight) * self.scale + self.mean

    def get_extra_state(self) -> Any:
        return {"number": self.number}

    def set_extra_state(self, state: Any) -> None:
        self.number = state["number"]


def _linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 3)


def _with(make: Make, *changes: Callable[[Any], object]) -> Make:
    def made() -> Any:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            module = make()
            for change in changes:
                change(module)
        return module

    return made


def _trained(module: nn.Module) -> None:
    module(torch.ones(2, 3)).sum().backward()


def _shared(module: nn.Module) -> None:
    module.again = module.weight


def _loop(module: nn.Module) -> None:
    module.list = [module]


def _scaled(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def _forward(x: torch.Tensor) -> torch.Tensor:
    return x - 1


_LINEAR: Make = _linear
KINDS: dict[str, Make] = {
    "plain": _LINEAR,
    "in evaluation": _with(_LINEAR, nn.Module.eval),
    "frozen": _with(_LINEAR, lambda m: m.requires_grad_(False)),
    "half": _with(_LINEAR, nn.Module.bfloat16),
    "double": _with(_LINEAR, nn.Module.double),
    "without bias": _with(lambda: nn.Linear(3, 3, bias=False)),
    "with gradients": _with(_LINEAR, _trained),
    "with a buffer": _with(_LINEAR, lambda m: m.register_buffer("mean", torch.ones(3))),
    "with a child": _with(_LINEAR, lambda m: m.add_module("child", nn.ReLU())),
    "with a shared parameter": _with(_LINEAR, _shared),
    "with an attribute": _with(_LINEAR, lambda m: setattr(m, "mark", 1)),
    "in a loop of references": _with(_LINEAR, _loop),
    "with its own forward": _with(_LINEAR, lambda m: setattr(m, "forward", _forward)),
    "with a forward hook": _with(_LINEAR, lambda m: m.register_forward_hook(_scaled)),
    "with a hook before": _with(_LINEAR, lambda m: m.register_forward_pre_hook(lambda m, a: None)),
    "with a backward hook": _with(
        _LINEAR, lambda m: m.register_full_backward_hook(lambda m, i, o: None)
    ),
    "with a state hook": _with(
        _LINEAR, lambda m: m.register_state_dict_post_hook(lambda m, s, p, v: s.clear())
    ),
    "weight norm": _with(_LINEAR, nn.utils.parametrizations.weight_norm),
    "spectral norm": _with(_LINEAR, nn.utils.parametrizations.spectral_norm),
    "own": Own,
    "own, in evaluation": _with(Own, nn.Module.eval),
    "batch norm": lambda: nn.BatchNorm1d(3),
    "batch norm without statistics": lambda: nn.BatchNorm1d(3, track_running_stats=False),
    "dropout": lambda: nn.Dropout(0.0),
    "without parameters": nn.ReLU,
    "sequence": _with(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Own())),
    "nested": _with(lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.BatchNorm1d(3))),
    "list": _with(lambda: nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])),
    "dict": _with(lambda: nn.ModuleDict({"child": nn.Linear(3, 3)})),
    "parameters": lambda: nn.ParameterList([torch.ones(3)]),
    "lazy": lambda: nn.LazyLinear(3),
    "meta": lambda: nn.Linear(3, 3, device="meta"),
}

# Where the module is: `x` is what the function is called with.
WAYS = {
    "passed in": "x",
    "held": "torch.nn.Sequential(x)",
    "a copy": "copy.deepcopy(x)",
    "found outside": "HELD[0]",
}
_LEFT_OUT = re.compile(
    r"__init__|__new__|__init_subclass__|__subclasshook__|__class__$|__getattribute__|__weakref__"
    r"|cuda$|xpu|ipu|mtia|^compile$|to_empty|share_memory|__reduce|__format__|_slow_forward"
)
# Arguments that are tried one after the other: of those that eager takes for a plain module, the
# first ones.
_ARGUMENTS = (
    *("", "hook", "'weight'", "t", "'new', None", "'new', t[0]", "'child'", "'mark', 1"),
    *("'new', torch.nn.Parameter(t)", "'new', torch.nn.ReLU()", "torch.float64", "'cpu'"),
    *("False", "x.state_dict()", "lambda s: s", "device='meta'", "'', x.state_dict()"),
    *("'prefix.'", "x", "None"),
)
_MOST_ARGUMENTS = 4
_ASKED_AGAIN = 6  # kinds, when there are entries for all
_HANDMADE = (
    *("x(t)", "len(x)", "x[0]", "[*x]", "x == x", "hash(x) == id(x)", "bool(x)", "repr(x)"),
    *("'weight' in dir(x)", "sorted(vars(x))", "x.weight is x.weight", "hasattr(x, 'mark')"),
    *("hasattr(x, 'bias')", "getattr(x, 'bias', 3)", "x.weight.requires_grad", "x.weight.grad"),
    *(
        "[n for n, p in x.named_parameters(prefix='a', recurse=False)]",
        "sum(1 for _ in x.modules())",
    ),
    *("[n for n, p in x.named_parameters(remove_duplicate=False)]", "x.state_dict(prefix='a.')"),
    *("[n for n, _ in x.named_modules(remove_duplicate=False)]", "x.state_dict(keep_vars=True)"),
    *("x.load_state_dict(x.state_dict(), strict=False)", "x.to(torch.float64).weight.dtype"),
    *("x.load_state_dict({}, strict=False)", "x.load_state_dict({})", "x.to(dtype=torch.half)"),
    *("x.load_state_dict(x.state_dict(), assign=True)", "x.to(t)", "x.to('cpu', torch.half)"),
    *("x.zero_grad(set_to_none=False)", "x.train(False)(t)", "x.eval().training", "id(x) == id(x)"),
    *("x.register_forward_hook(hook, prepend=True)", "x.register_forward_hook(hook).remove()"),
    *("x.register_forward_hook(hook, with_kwargs=True)", "isinstance(x, torch.nn.Linear)"),
    *("x.register_forward_hook(hook, always_call=True)", "type(x).__name__", "copy.copy(x)"),
    *("x.__setattr__('weight', torch.nn.Parameter(t))", "x.__setattr__('weight', None)"),
    *("x.__setattr__('weight', t)", "x.__delattr__('weight')", "x.__delattr__('bias')"),
    *("x.__setattr__('mean', t[0])", "x.__setattr__('child', torch.nn.ReLU())", "x.__dict__['x']"),
    *("x._parameters.get('weight')", "len(x._buffers)", "list(x._modules)", "copy.deepcopy(x)"),
    *("x.apply(lambda m: m.eval())", "x.apply(lambda m: setattr(m, 'mark', 2))", "x._modules['0']"),
    *("torch.nn.utils.parameters_to_vector(x.parameters())", "next(x.parameters())"),
    *("torch.nn.utils.clip_grad_norm_(x.parameters(), 1.0)", "next(x.children(), None)"),
    "torch.func.functional_call(x, dict(x.named_parameters()), (t,))",
    *(
        "torch.nn.utils.parametrize.is_parametrized(x)",
        "x.half()(t.half())",
        "dict(x.named_buffers())",
    ),
)


def hook(*arguments: Any) -> None:
    """A hook of any kind that changes nothing."""


def questions() -> Iterator[str]:
    """Expressions of a module `x` and a tensor `t`."""
    plain = KINDS["plain"]
    for name in dir(nn.Module):
        if _LEFT_OUT.search(name):
            continue
        value = getattr(plain(), name, None)
        if not callable(value) or isinstance(value, type):
            yield f"x.{name}"
            continue
        accepted = 0
        for arguments in _ARGUMENTS:
            text = f"x.{name}({arguments})"
            if accepted < _MOST_ARGUMENTS and "raised" not in _ask(function_of(text, "x"), plain):
                accepted += 1
                yield text
        if not accepted:
            yield f"x.{name}()"
    yield from _HANDMADE


HELD: list[Any] = []


def function_of(text: str, place: str) -> Callable[[Any, Any], Any]:
    """A function that asks, and has an operator in its graph, whatever the answer."""
    source = f"def ask(x, t):\n    more = t + 1\n    x = {place}\n    return ({text}), more, x\n"
    space = {**namespace(), "hook": hook, "HELD": HELD}
    exec(compile(source, f"<{text}>", "exec"), space)
    ask: Callable[[Any, Any], Any] = space["ask"]
    return ask


def sweep(asked: Iterable[str], ways: Iterable[str] = WAYS, tally: Tally | None = None) -> Tally:
    """Put questions to modules of all kinds, one after the other, twice."""
    tally = tally or Tally()
    for text in asked:
        for way in ways:
            _ask_all(text, way, tally)
    return tally


def _ask_all(text: str, way: str, tally: Tally) -> None:
    function = function_of(text, WAYS[way])
    braze.reset()
    is_different = False
    with recorded() as journal, config.patch(recompile_limit=256, dynamic=False):
        compiled = braze.compile(function, backend="eager")
        for kind, make in (*KINDS.items(), *[*KINDS.items()][:_ASKED_AGAIN]):
            expected, actual = _ask(function, make), _ask(compiled, make)
            tally.asked += 1
            if expected != actual and not is_different:
                is_different = True
                tally.differences.append(Difference(text, way, kind, expected, actual))
        tally.graphs += sum(record.outcome == "graph" for record in journal.records())


def _ask(function: Callable[[Any, Any], Any], make: Make) -> str:
    """The answer of a module of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make()
    HELD[:] = [module]
    return shown_answer(function, module)


def shown_answer(function: Callable[[Any, Any], Any], module: Any) -> str:
    """The answer as text, and what became of the module and of the random numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        asked = module
        try:
            answer, _, asked = function(module, torch.ones(2, 3))
            said = shown(answer, asked)
        except Exception as error:
            said = f"raised {type(error).__name__} {_plain(str(error))[:200]}"
        drawn = torch.rand(()).item()
        states = state(module) if asked is module else f"{state(asked)}; {state(module)}"
        return f"{said}; {states}; {drawn:.6f}"


_ADDRESS = re.compile(r"0x[0-9a-f]+|\b\d{9,}\b")


def _plain(text: str) -> str:
    return _ADDRESS.sub("an address", text)


def shown(value: Any, module: Any) -> str:
    """A value in words that two modules of one kind share."""
    if value is module:
        return "x"
    if isinstance(value, torch.Tensor):
        return _shown_tensor(value)
    if isinstance(value, nn.Module):
        return f"module {value!r} {value.training}"
    if isinstance(value, dict):
        items = [f"{_key(k)}: {shown(v, module)}" for k, v in value.items()]
        return f"{type(value).__name__}{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple, set)):
        return f"{type(value).__name__}({', '.join([shown(v, module) for v in value])})"
    if isinstance(value, Iterator):
        return f"{type(value).__name__} of {[shown(v, module) for v in value]}"
    return f"{type(value).__name__} {_plain(str(value))}"


def _key(key: Any) -> str:
    return "a number" if type(key) is int else str(key)  # hooks are numbered as they come


def _shown_tensor(value: torch.Tensor) -> str:
    facts = f"{type(value).__name__} {value.dtype} {value.requires_grad} {value.device}"
    if value.is_meta or isinstance(value, nn.parameter.UninitializedTensorMixin):
        return facts
    return f"{facts} {tuple(value.shape)} {value.detach().tolist()}"


def state(module: Any) -> str:
    """What a module is: its dict, hooks, tensors with their gradients, and what its call gives."""
    parts = [type(module).__name__]
    for name, inner in module.named_modules():
        parts.append(f"{name}: {type(inner).__name__}")
        for key, value in vars(inner).items():
            if isinstance(value, dict) and "hook" in key:
                parts.append(f"{key} {len(value)}")
            elif key not in ("list", "plain"):
                parts.append(f"{key} {shown(value, module)}")
        for parameter in inner.parameters(recurse=False):
            parts.append("None" if parameter.grad is None else _shown_tensor(parameter.grad))
    try:
        parts.append(shown(copy.deepcopy(module)(torch.ones(2, 3)), None))
    except Exception as error:
        parts.append(type(error).__name__)
    return ", ".join(parts)


def main() -> int:
    """Put the questions to modules."""
    return run_sweep(__doc__, WAYS, questions(), sweep, lambda found: str(shortened(found)))


def shortened(found: Difference) -> str:
    """A difference from a little before where the two texts part."""
    pairs = enumerate(zip(found.eager, found.compiled, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), 0)
    start = max(0, at - 60)
    short = found._replace(
        eager=found.eager[start : at + 200], compiled=found.compiled[start : at + 200]
    )
    return str(short)


if __name__ == "__main__":
    sys.exit(main())
