"""Cached functions of every kind, called by compiled code and changed between its calls.

    python -m tests.surface.cached_functions [--count 2000] [--only text] [--fullgraph]

Each program is a cache, a key, a body, a use and changes between calls, chosen at random. It is run
as it is and compiled: values, identities of results, what bodies did, `cache_info`, exceptions.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import braze
from braze.trace import FAULTS

# --- caches: a decorator, by what it does to a function ------------------------------------------


def _of_method(cached: Any) -> Any:
    class Owner:
        method = cached

    return Owner().method


def _of_class(kind: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        class Owner:
            made = kind(functools.cache(method))

        return Owner.made

    return decorate


def _of_self(function: Any) -> Any:
    @functools.lru_cache(maxsize=2)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return _of_method(method)


CACHES: dict[str, Callable[[Any], Any]] = {
    "cache": functools.cache,
    "lru_cache": functools.lru_cache,
    "lru_cache of 0": functools.lru_cache(maxsize=0),
    "lru_cache of 1": functools.lru_cache(maxsize=1),
    "lru_cache of 2": functools.lru_cache(maxsize=2),
    "lru_cache of 3, typed": functools.lru_cache(maxsize=3, typed=True),
    "cache of a cache": lambda f: functools.cache(functools.lru_cache(maxsize=1)(f)),
    "method": _of_self,
    "classmethod": _of_class(classmethod),
    "partial": lambda f: functools.cache(functools.partial(f)),
    "partial of a cache": lambda f: functools.partial(functools.cache(f)),
    "wrapped": lambda f: functools.wraps(f)(functools.lru_cache(maxsize=2)(f)),
}

# --- keys: two of each; made anew where they are made in the frame -------------------------------


@dataclasses.dataclass(frozen=True)
class _Config:
    width: int


class _Plain:
    pass


class _Equal:
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return type(other) is _Equal and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


KEYS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "ints": lambda: (1, 2),
    "equal numbers": lambda: (1, 1.0),
    "truths": lambda: (True, 1),
    "floats": lambda: (1.5, -0.0),
    "texts": lambda: ("a", "b"),
    "tuples": lambda: ((1, "a"), (1, "b")),
    "dtypes": lambda: (torch.float32, torch.int64),
    "none": lambda: (None, ...),
    "functions": lambda: (torch.relu, _of_method),
    "classes": lambda: (int, _Plain),
    "objects": lambda: (_Plain(), _Plain()),
    "tuples of objects": lambda: ((_Plain(), 1), (_Plain(), 1)),
    "modules": lambda: (nn.Linear(1, 1), nn.ReLU()),
    "tensors": lambda: (torch.ones(2), torch.zeros(2)),
    "parameters": lambda: (nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))),
    "tuples of tensors": lambda: ((torch.ones(2),), (torch.zeros(2),)),
    "frozen dataclasses": lambda: (_Config(1), _Config(2)),
    "equal objects": lambda: (_Equal(1), _Equal(1)),
    "lists": lambda: ([1], [2]),
    "sizes": lambda: (torch.Size((1, 2)), torch.Size((2, 1))),
    "devices": lambda: (torch.device("cpu"), torch.device("meta")),
}

# --- bodies: of a state (counts, what is said) and the key ---------------------------------------


@dataclasses.dataclass
class State:
    number: int = 1
    calls: list[Any] = dataclasses.field(default_factory=list)
    weight: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(2))


def _counts(state: State, key: Any) -> Any:
    state.calls.append(state.number)
    return len(state.calls)


def _raises(state: State, key: Any) -> Any:
    state.calls.append("raised")
    raise ValueError(state.number)


def _raises_once(state: State, key: Any) -> Any:
    if state.number == 1:
        raise KeyError("once")
    return [state.number]


def _logs(state: State, key: Any) -> None:
    logging.getLogger("cached").warning("asked")


def _logs_and_counts(state: State, key: Any) -> Any:
    logging.getLogger("cached").warning("asked")
    return state.number


def _generates(state: State, key: Any) -> Iterator[Any]:
    for number in range(3):
        state.calls.append(number)
        yield number


def _writes_tensor(state: State, key: Any) -> Any:
    state.weight.add_(1)
    return state.weight


BODIES: dict[str, Callable[[State, Any], Any]] = {
    "counts": _counts,
    "a number": lambda state, key: state.number * 2.5,
    "a text": lambda state, key: f"{state.number} of {type(key).__name__}",
    "none": lambda state, key: None,
    "a list": lambda state, key: [state.number, state.calls],
    "a dict": lambda state, key: {"n": state.number},
    "the key": lambda state, key: key,
    "an object": lambda state, key: _Plain(),
    "a function": lambda state, key: lambda x: x + state.number,
    "a tensor": lambda state, key: torch.full((2,), float(state.number)),
    "tensors": lambda state, key: (state.weight * 2, [state.weight.sum()]),
    "random": lambda state, key: torch.rand(2),
    "of the key": lambda state, key: key * 2,
    "a module": lambda state, key: nn.ReLU(),
    "raises": _raises,
    "raises once": _raises_once,
    "logs": _logs,
    "logs, counts": _logs_and_counts,
    "generates": _generates,
    "writes a tensor": _writes_tensor,
    "prints": lambda state, key: print(end="") or state.number,
}

# --- uses: what the compiled function does with the cached one -----------------------------------


def _in_a_loop(k: Any, a: Any, b: Any) -> Any:
    return [k(key) for key in (a, b, a, b)]


def _caught(k: Any, a: Any, b: Any) -> Any:
    try:
        found = k(a)
    except (ValueError, KeyError) as error:
        found = repr(error)
    return found, k(b)


def _cleared(k: Any, a: Any, b: Any) -> Any:
    first = k(a)
    k.cache_clear()
    return first, k(a)


def _under(context: Callable[[], Any]) -> Any:
    def use(k: Any, a: Any, b: Any) -> Any:
        with context():
            first = k(a)
        return first, k(a)

    return use


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "once": lambda k, a, b: k(a),
    "twice": lambda k, a, b: (k(a), k(a)),
    "in turns": lambda k, a, b: (k(a), k(b), k(a)),
    "in a loop": _in_a_loop,
    "counted inside": lambda k, a, b: (k(a), tuple(k.cache_info()), k(b), k.cache_info().hits),
    "cleared inside": _cleared,
    "past the cache": lambda k, a, b: (k.__wrapped__(a), k(a)),
    "mapped": lambda k, a, b: [*map(k, (a, b, a))],
    "caught": _caught,
    "no_grad": _under(torch.no_grad),
    "inference_mode": _under(torch.inference_mode),
    "autocast": _under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "unread": lambda k, a, b: (k(a), None)[1],
    "of what is made": lambda k, a, b: k(a if type(a) is not torch.Tensor else a + 1),
    "of a new object": lambda k, a, b: (k(_Plain()), k(a)),
}

# --- changes between calls -----------------------------------------------------------------------


def _write_to_keys(k: Any, state: State, keys: tuple[Any, Any]) -> None:
    for key in keys:
        if isinstance(key, torch.Tensor):
            key.detach().add_(1)


def _call(k: Any, *keys: Any) -> None:
    for key in keys:
        with contextlib.suppress(Exception):
            k(key)


CHANGES: dict[str, Callable[[Any, State, tuple[Any, Any]], Any]] = {
    "nothing": lambda k, state, keys: None,
    "cleared": lambda k, state, keys: k.cache_clear(),
    "filled": lambda k, state, keys: _call(k, *keys),
    "evicted": lambda k, state, keys: _call(k, 7, 8, 9),
    "another state": lambda k, state, keys: setattr(state, "number", state.number + 1),
    "state, cleared": lambda k, state, keys: (
        setattr(state, "number", state.number + 1),
        k.cache_clear(),
    ),
    "written to": _write_to_keys,
    "called": lambda k, state, keys: _call(k, keys[0]),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """What is chosen, each by its name."""

    cache: str
    key: str
    body: str
    use: str
    changes: tuple[str, ...]
    mode: str = "nothing"

    def __str__(self) -> str:
        parts = (self.cache, self.key, self.body, self.use, ", ".join(self.changes), self.mode)
        return " | ".join(parts)


_MODES: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def program(seed: int) -> Program:
    """A program, by its number."""
    chosen = random.Random(seed)
    return Program(
        chosen.choice([*CACHES]),
        chosen.choice([*KEYS]),
        chosen.choice([*BODIES]),
        chosen.choice([*USES]),
        tuple(chosen.choice([*CHANGES]) for _ in range(3)),
        chosen.choice(["nothing", "nothing", "nothing", *_MODES]),
    )


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _shown(value: Any, seen: list[Any]) -> Any:
    """A value as text, each object with the number of its first appearance."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [_shown(item, seen) for item in value]
        if type(value) is tuple:
            return items
        return [f"#{_number(value, seen)}", items]
    if isinstance(value, dict):
        return [f"#{_number(value, seen)}", [(k, _shown(v, seen)) for k, v in value.items()]]
    if isinstance(value, torch.Tensor):
        state = value.requires_grad, value.is_inference(), str(value.dtype)
        return f"#{_number(value, seen)}", value.tolist(), state
    if isinstance(value, (int, float, str, type(None), type(...))):
        return value
    if isinstance(value, Iterator):
        return f"#{_number(value, seen)}", _shown([*value], [])
    return f"#{_number(value, seen)}", type(value).__name__


def _number(value: Any, seen: list[Any]) -> int:
    for number, other in enumerate(seen):
        if other is value:
            return number
    seen.append(value)
    return len(seen) - 1


def _info(k: Any) -> Any:
    owner = k.func if isinstance(k, functools.partial) else k
    return tuple(owner.cache_info()) if hasattr(owner, "cache_info") else None


def observed(chosen: Program, compiler: Callable[[Any], Any]) -> list[Any]:
    """What the program gives, call by call."""
    torch.manual_seed(0)
    state, keys, seen = State(), KEYS[chosen.key](), []
    body, use = BODIES[chosen.body], USES[chosen.use]

    def function(key: Any) -> Any:
        return body(state, key)

    k = CACHES[chosen.cache](function)

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        return use(k, *keys), y + state.number

    f = compiler(f)
    log, found = _Log(), []
    logger = logging.getLogger("cached")
    logger.addHandler(log)
    logger.propagate = False
    try:
        for change in ("nothing", *chosen.changes):
            try:
                CHANGES[change](k, state, keys)
            except Exception as error:
                found.append(repr(error))
            with _MODES[chosen.mode]():
                try:
                    found.append(_shown(f(torch.ones(2)), seen))
                except Exception as error:
                    found.append((type(error).__name__, str(error)[:200]))
            found.append((_shown([*state.calls], seen), state.weight.tolist(), [*log.lines]))
            found.append(_info(k))
    finally:
        logger.removeHandler(log)
    return found


def difference(chosen: Program, *, fullgraph: bool = False) -> str | None:
    """How the compiled program differs from eager, or the fault that Braze warned of; None: it
    does not. Under fullgraph a program may be refused."""
    expected = observed(chosen, lambda f: f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = observed(chosen, lambda f: braze.compile(f, fullgraph=fullgraph))
    for at, (want, have) in enumerate(zip(expected, got, strict=True)):
        if fullgraph and "GraphBreakError" in str(have):
            return None
        if str(want) != str(have):
            return f"{at // 3}.{at % 3}: {want} != {have}"
    said = [str(one.message) for one in caught if any(f"[{c}]" in str(one.message) for c in FAULTS)]
    return f"warned: {said[0]}" if said else None


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--fullgraph", action="store_true")
    options = parser.parse_args()
    differing = 0
    for seed in range(options.first, options.first + options.count):
        chosen = program(seed)
        if options.only not in str(chosen):
            continue
        try:
            problem = difference(chosen, fullgraph=options.fullgraph)
        except Exception as error:
            problem = repr(error)
        if problem is not None:
            differing += 1
            print(f"{seed}: {chosen}\n    {problem}"[:600], flush=True)
        if seed % 50 == 0:
            braze.reset()
            gc.collect()
    print(f"{differing} of {options.count} differ")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
