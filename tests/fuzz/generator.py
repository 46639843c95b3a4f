"""A program from a seed."""

from __future__ import annotations

import random

from tests.fuzz import builtin_subclasses
from tests.fuzz.changes import change
from tests.fuzz.definitions import (
    GLOBALS,
    SUPPORT,
    box_class,
    entry,
    helper,
    net_class,
    shared_places,
)
from tests.fuzz.program import HEADER, Program
from tests.fuzz.scope import Draft, Place

# Most programs are run by the graph of ATen operators that the product compiles; some by the
# torch-level graph, and a few by compiled kernels, which cost a C++ build.
BACKENDS = (("aot_eager", 0.62), ("eager", 0.38))


def generate(seed: int, backend: str | None = None) -> Program:
    """The program of this seed."""
    rng = random.Random(seed)
    if backend is None:
        backend = rng.choices([b for b, _ in BACKENDS], [w for _, w in BACKENDS])[0]
    draft = Draft(rng, fuel=rng.choice([4, 8, 12, 18, 28]))
    fuel, draft.fuel = draft.fuel, 6
    lines = [HEADER, SUPPORT, ""]
    places = shared_places(draft)
    lines += [f"{name} = {text}" for name, text, _ in GLOBALS]
    lines += ["LOG = []", ""]
    has_boxes, has_net = rng.random() < 0.6, rng.random() < 0.35
    functions: list[Place] = []
    if rng.random() < 0.25:
        draft.has_subclasses = True
        lines += [builtin_subclasses.SUPPORT]
        places += builtin_subclasses.PLACES
    for n in range(rng.choice([0, 1, 1, 2])):
        draft.fuel = 5
        lines += helper(draft, f"helper{n}", [*shared_places(draft), *functions])
        functions.append(Place(f"helper{n}", "function", (2, 3), "f", "global", written=False))
    if has_boxes:
        draft.fuel = 6
        lines += box_class(draft, 0, [*shared_places(draft)[:2], *functions])
        draft.boxes = ["Box0"]
        lines += ["g_box = Box0(3, T(2, 3, start=10))", ""]
        places.append(Place("g_box", "box", owner="global", written=False))
    if has_net:
        draft.has_net = True
        draft.fuel = 4
        lines += net_class(draft, shared_places(draft)[:2])
        lines += ["torch.manual_seed(1)", "g_net = Net()", ""]
        places.append(Place("g_net", "net", owner="global", written=False))
    draft.fuel = fuel
    is_closure = rng.random() < 0.4
    body = entry(draft, [*places, *functions], is_closure=is_closure)
    lines += [*body, *arguments(draft)]
    names = [place.text for place in functions]
    steps = _steps(draft, "\n".join(body), is_closure, names)
    return Program("\n".join(lines), steps, backend, seed)


def arguments(draft: Draft) -> list[str]:
    """Objects that are passed to several calls."""
    box = "Box0(1, T(2, 3, start=11))" if draft.boxes else "None"
    return [
        "x = T(2, 3, start=12)",
        "y = T(3, start=13)",
        "z = T(2, 3, start=14)",
        "xp = P(2, 3, start=15)",
        f"box = {box}",
        "lst = [T(2, 3, start=16), T(2, 3, start=17)]",
        "d = {'u': 1, 'v': 3}",
    ]


def _steps(draft: Draft, text: str, is_closure: bool, functions: list[str]) -> tuple[str, ...]:
    """Calls of one kind, then one change at a time with a call after it."""
    rng = draft.rng
    call = _call(draft)
    steps = [call] * rng.choice([1, 2, 2, 3])
    if rng.random() < 0.3:
        steps.append(_call(draft))
    for _ in range(rng.choice([2, 3, 4, 5])):
        made, call = change(draft, call, text, is_closure, functions)
        steps += made
        steps.append(call)
        if rng.random() < 0.2:
            steps.append(call)
        if rng.random() < 0.15:
            steps.append(_call(draft))
    if rng.random() < 0.35:
        steps.append("backward(R)")
        if rng.random() < 0.5:
            steps.append(call)
    return tuple(steps)


_FRESH = (
    "T(2, 3, start={})",
    "T(3, 2, start={}).t()",
    "P(2, 3, start={})",
    "T(4, 3, start={})[::2]",
    "T(4, 3, start={})[1::2]",
    "T(4, 3, start={})[2:]",
)


def _call(draft: Draft) -> str:
    """A call of `run`: tensors that persist, fresh ones, aliases, other kinds of values."""
    rng = draft.rng
    lists, dicts = (["g_row"], ["g_bag"]) if draft.has_subclasses else ([], [])
    fresh = rng.choice(_FRESH).format(rng.randrange(17))
    first = rng.choice(["x", "x", "x", "xp", fresh, "lst[0]", "g_t"])
    second = rng.choice(["y", "y", "y", "g_v", "x[0]", "T(3, start=3)"])
    third = rng.choice(["z", "z", "z", "x", "lst[0]", "x.view(2, 3)", "T(2, 3)", "xp"])
    parts = [first, second]
    parts.append(third if rng.random() < 0.5 else f"z={third}")
    keywords = [
        f"n={rng.choice([0, 1, 2, 3])}",
        f"flag={rng.choice([True, False])}",
        f"box={rng.choice(['box', 'box', 'box', 'box'])}",
        f"lst={rng.choice(['lst', 'lst', '[x, z]', '[z, z, x]', '[T(2, 3)]', *lists])}",
        f"d={rng.choice(['d', 'd', 'dict(u=1)', 'g_counts', *dicts])}",
    ]
    kept = [k for k in keywords if rng.random() < 0.9 or k[:2] in ("bo", "ls", "d=")]
    return f"run({', '.join([*parts, *kept])})"
