"""Programs that train: several models and optimizers, written statement by statement.

`training_plans.py` has whole steps of one form. Here the statements of a step come in any order,
and between two steps the loop around it does what loops do: freezes and thaws, ties and unties,
sets gradients to None or to zero, changes rates and settings, registers hooks.

Left out, since the README says where compiled raises and eager does not: `create_graph=True` in a
backward behind writes.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any, final

from tests.fuzz.loop_statements import (
    BACKWARDS,
    BETWEEN,
    FORWARD,
    FORWARDS,
    LOSSES,
    MADE,
    OPTIMIZERS,
    STATEMENTS,
    STEPS,
    SUPPORT,
    Statement,
)
from tests.fuzz.program import HEADER, Program

_BACKENDS = (("aot_eager", 0.62), ("eager", 0.36), ("braze", 0.02))
_ENDS = ("{loss}.detach()", "{loss}.item()", "{value}", "{loss}, {value}", "None")


def generate_loop(seed: int) -> Program:
    """The training program of this seed."""
    rng = random.Random(seed)
    backend = rng.choices([b for b, _ in _BACKENDS], [w for _, w in _BACKENDS])[0]
    lines = [HEADER, "from torch import optim", SUPPORT]
    for name in ("Net", "Other"):
        lines += [f"class {name}(Trunk):", "    def forward(self, q):"]
        lines += _indented(_forward(rng), 2)
        lines.append("")
    lines += [rng.choice(MADE), *_optimizers(rng), "LOG = []", ""]
    entry = "\n".join(_indented(_step(rng), 1))
    lines += ["def entry(x, y, n=1, flag=True):", entry, ""]
    lines += ["x, y = T(2, 3, start=12), T(2, 3, start=14)"]
    return Program("\n".join(lines), _steps(rng, entry), backend, seed)


# --- private ---------------------------------------------------------------------------------


@final
@dataclass(slots=True)
class _Body:
    """What the statements of one function can use. values: names of tensors of shape (2, 3).
    carriers: of those that gradients flow through, which losses are mostly of. losses: names of
    scalars whose history is not used up."""

    rng: random.Random
    values: list[str]
    losses: list[str] = field(default_factory=list)
    carriers: list[str] = field(default_factory=list)
    count: int = 0

    def write(self, statement: Statement) -> list[str] | None:
        """The statement's lines with names in place; None where there is no such name."""
        if "{loss}" in statement.text and not self.losses:
            return None
        values = self.values
        if statement.makes == "loss" and self.carriers and self.rng.random() < 0.9:
            values = self.carriers
        words: dict[str, Any] = {
            "net": self.rng.choice("AAB"),
            "other": self.rng.choice("AB"),
            "opt": self.rng.choice(("o1", "o1", "o2")),
            "layer": self.rng.choice(("first", "second")),
            "weight": self.rng.choice(_WEIGHTS),
            "value": self.rng.choice(values[-3:]),
            "value2": self.rng.choice(self.values),
            "bool": self.rng.choice(("True", "False")),
            "rate": self.rng.choice(("0.5", "0.1", "0.9")),
        }
        if self.losses:
            words |= {"loss": self.rng.choice(self.losses), "loss2": self.rng.choice(self.losses)}
        if statement.makes:
            self.count += 1
            words["new"] = f"{statement.makes[0]}{self.count}"
        text = _filled(statement.text, words)
        if statement.uses_up:
            self.losses = [name for name in self.losses if name not in re.findall(r"\w+", text)]
        if statement.makes == "value":
            self.values.append(words["new"])
            if statement.carries:
                self.carriers.append(words["new"])
        elif statement.makes == "loss":
            self.losses.append(words["new"])
        return text.splitlines()

    def some(self, table: tuple[Statement, ...], count: int) -> list[str]:
        """So many statements of a table, fewer where names for them are missing."""
        lines: list[str] = []
        weights = [row.weight for row in table]
        for _ in range(count):
            rows = self.rng.choices(table, weights, k=8)
            lines += next((made for made in map(self.write, rows) if made), [])
        return lines


_WEIGHTS = ("A.first.weight", "A.first.bias", "A.scale", "B.first.weight", "B.second.weight")


def _filled(text: str, words: dict[str, Any]) -> str:
    """Braces of the program's own dicts stay."""
    return re.sub(r"\{(\w+)\}", lambda m: str(words.get(m[1], m[0])), text)


def _indented(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]


def _forward(rng: random.Random) -> list[str]:
    layer = rng.choice(("first", "second"))
    body = _Body(rng, ["v0"])
    lines = [f"v0 = self.{layer}(q)", *body.some(FORWARD, rng.randint(0, 3))]
    return [*lines, f"return {body.values[-1]}"]


_GROUPS = (
    "[{'params': [A.first.weight, A.scale], 'lr': 0.25}, "
    "{'params': [p for p in B.parameters() if p is not A.first.weight]}]"
)


def _optimizers(rng: random.Random) -> list[str]:
    made = []
    for name, rows in (("o1", "A.parameters()"), ("o2", "B.parameters()")):
        if rng.random() < 0.25:
            rows = _GROUPS
        kind, options = rng.choice(OPTIMIZERS)
        if rng.random() < 0.5 and "foreach" not in options:
            options += rng.choice((", foreach=True", ", foreach=False", ", maximize=True"))
        made.append(f"{name} = optim.{kind}({rows}, {options})")
    return made


def _step(rng: random.Random) -> list[str]:
    """A forward, a loss, a backward and a step of an optimizer, and anything before, between and
    behind; blocks around some of it."""
    body = _Body(rng, ["x", "y"])
    lines = _pieces(body, rng.choice((0, 1, 1)))
    for table in (FORWARDS, FORWARDS, LOSSES, BACKWARDS, STEPS):
        lines += body.some(table if body.losses or table is not BACKWARDS else LOSSES, 1)
        lines += _pieces(body, rng.choice((0, 0, 1, 2)))
    value = rng.choice(body.values)
    end = rng.choice(_ENDS if body.losses else ("None", "{value}", "{value}.detach()"))
    loss = rng.choice(body.losses) if body.losses else ""
    return [*lines, "return " + _filled(end, {"loss": loss, "value": value})]


def _pieces(body: _Body, count: int) -> list[str]:
    lines = []
    for _ in range(count):
        seen = list(body.values), list(body.carriers)
        losses = list(body.losses)
        piece = body.some(STATEMENTS, body.rng.choice((1, 1, 2)))
        head = body.rng.choices(_HEADS, _HEAD_WEIGHTS)[0]
        if head:
            piece = [head, *_indented(piece, 1)]
            left = set(body.losses)
            body.values, body.carriers = seen
            body.losses = [name for name in losses if name in left]
        lines += piece
    return lines


_HEADS = ("", "if flag:", "for _ in range(n):", "with torch.no_grad():", "if not flag:")
_HEAD_WEIGHTS = (12, 2, 1, 0.6, 1)
_CALLS = (
    *(
        "run(x, y)",
        "run(x, y)",
        "run(x, y)",
        "run(y, x)",
        "run(x, y, flag=False)",
        "run(x, y, n=2)",
    ),
    "run(T(2, 3, start=5), y)",
    "run(P(2, 3, start=3), y)",
)


def _steps(rng: random.Random, entry: str) -> tuple[str, ...]:
    """Calls, and what is between them. Second derivatives come where nothing is written through
    `.data`, which nobody notices."""
    call = rng.choice(_CALLS)
    steps = [call] * rng.choice((1, 2, 2, 3))
    body = _Body(rng, ["x", "y"])
    for _ in range(rng.randint(2, 5)):
        steps += ["\n".join(body.some(BETWEEN, 1)) for _ in range(rng.choice((1, 1, 2)))]
        if rng.random() < 0.25:
            call = rng.choice(_CALLS)
        steps += [call] * rng.choice((1, 1, 2))
    end = rng.random()
    if end < 0.2:
        steps += ["backward(R)", call]
    elif end < 0.6 and ".data" not in entry + "".join(steps):
        steps += ["backward_twice(R, *A.parameters(), *B.parameters(), x)", call]
    return tuple(steps)
