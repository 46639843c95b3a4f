"""A random program of a seed: idioms drawn, nested and joined, and the worlds between its calls."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from typing import final

from tests.fuzz.reference.program import IMPORTS, Program
from tests.fuzz.reference.templates import Idiom, Piece, Scope, assigned, draw, fill
from tests.fuzz.reference.vocabulary import IDIOMS, OPERATORS

_WAYS = (
    *["braze.compile(entry, backend='aot_eager')"] * 72,
    *["braze.compile(entry, backend='eager')"] * 48,
    *["braze.compile(entry, backend='aot_eager', dynamic=True)"] * 24,
    *["braze.compile(entry, backend='eager', dynamic=True)"] * 12,
    *["braze.compile(entry, backend=lambda module, inputs: module.forward)"] * 12,
    *["braze.compile(entry, backend='aot_eager', dynamic=False)"] * 9,
    *["braze.compile(entry, backend='aot_eager_decomp_partition')"] * 9,
    *["braze.compile(entry, options={'numerics': 'eager'})"] * 14,
)
_INPUTS = (
    *["torch.arange(6.0).reshape(2, 3)"] * 5,
    *["torch.arange(9.0).reshape(3, 3)"] * 2,
    "torch.arange(3.0).reshape(1, 3)",
    "torch.arange(12.0).reshape(4, 3) / 4",
    "torch.arange(6.0).reshape(3, 2).t()",
    "torch.arange(3.0).expand(2, 3)",
    "torch.arange(12.0).reshape(4, 3)[::2]",
    "torch.arange(6.0).reshape(2, 3).requires_grad_()",
    "nn.Parameter(torch.arange(6.0).reshape(2, 3))",
    "(torch.ones(2, 3, requires_grad=True) * 2)",
    "torch.zeros(0, 3)",
    "X0",
    "X0",
    "X1.expand(2, 3)",
    "X1.detach().expand(2, 3)",
    "X0[:]",
)
_ENTRIES = (
    *["function"] * 5,
    "module",
    "method",
    "callable",
)


def generate(seed: int, only: Sequence[str] = ()) -> Program:
    """The program of a seed. only: names of the idioms that it may be made of."""
    return _Writer(random.Random(f"{seed} {sorted(only)}"), seed, only).program()


@final
class _Writer:
    def __init__(self, rng: random.Random, seed: int, only: Sequence[str]) -> None:
        self._rng = rng
        self._seed = seed
        self._idioms = [one for one in IDIOMS if not only or one.name in only]
        self._groups = sorted({one.group for one in self._idioms})
        self._pieces: list[Piece] = []
        self._next = 0

    def program(self) -> Program:
        """The whole."""
        rng = self._rng
        entry = rng.choice(_ENTRIES)
        scope = Scope(["x"], ["n"])
        lines = [*self._operators(scope, rng.randint(2, 3))]
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
            lines += self._piece(scope, depth=0)
            if rng.random() < 0.5:
                lines += self._operators(scope, 1)
        lines += self._operators(scope, rng.randint(1, 2))
        lines.append(self._result(scope))
        text = self._module_text(entry, lines)
        names = {piece.number: piece.idiom.name for piece in self._pieces}
        return Program(text, self._steps(entry == "module"), rng.choice(_WAYS), self._seed, names)

    def _module_text(self, entry: str, lines: list[str]) -> str:
        closed = Scope(["W"])
        setups = [fill(piece.setup, closed, self._rng) for piece in self._pieces if piece.setup]
        body = textwrap.indent("\n".join(lines), "    ")
        parts = [IMPORTS, _SHARED, *setups]
        if entry == "function":
            parts += [f"def step(x, n):\n{body}", "ENTRY = step"]
        else:
            inner = textwrap.indent(f"def {_METHODS[entry]}(self, x, n):\n{body}", "    ")
            parts.append(_CLASSES[entry].format(body=inner))
        return "\n\n".join(parts)

    def _operators(self, scope: Scope, count: int) -> list[str]:
        lines: list[str] = []
        for _ in range(count):
            lines += self._write(self._rng.choice(OPERATORS), scope, depth=9)
        return lines

    def _piece(self, scope: Scope, depth: int) -> list[str]:
        group = self._rng.choice(self._groups)
        choices = [one for one in self._idioms if one.group == group]
        if depth >= 2:
            choices = [one for one in choices if not one.nests] or list(OPERATORS)
        return self._write(self._rng.choice(choices), scope, depth)

    def _write(self, idiom: Idiom, scope: Scope, depth: int) -> list[str]:
        """The lines of an instance; what it assigns is in scope from there on."""
        piece = draw(idiom, self._next, self._rng)
        self._next += 1
        self._pieces.append(piece)
        lines: list[str] = []
        nested = scope
        for line in piece.step.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            if line.strip() in ("$BODY", "$BRANCH", "$INNER"):
                nested = scope if line.strip() == "$BODY" else scope.inner()
                if line.strip() == "$INNER":
                    nested.tensors.append(f"u{piece.number}")
                lines += [indent + one for one in self._body(nested, depth)]
            else:
                line = line.replace("$R", nested.tensors[-1])
                lines.append(fill(line, scope, self._rng))
        for name in assigned(piece.step, piece.number):
            places = {"t": scope.tensors, "k": scope.numbers, "o": scope.others}
            if name not in places[name[0]]:
                places[name[0]].append(name)
        return lines

    def _body(self, scope: Scope, depth: int) -> list[str]:
        if self._rng.random() < 0.4:
            return self._operators(scope, self._rng.randint(1, 2))
        return [*self._operators(scope, 1), *self._piece(scope, depth + 1)]

    def _result(self, scope: Scope) -> str:
        tensors = scope.tensors[-1:] if self._rng.random() < 0.3 else scope.tensors[-3:]
        numbers = [name for name in scope.numbers if name != "n"]
        return f"return [{', '.join([*scope.others, *numbers, *tensors])}]"

    def _steps(self, is_module: bool) -> tuple[str, ...]:
        """Calls, and worlds between them: those of the idioms, and general ones."""
        rng = self._rng
        first = rng.choice(_INPUTS)
        worlds = [world for piece in self._pieces for world in piece.worlds]
        steps = [f"run({first}, 2)"]
        for _ in range(rng.randint(2, 4)):
            count = min(len(worlds), rng.choice((0, 1, 1, 1, 2)))
            steps += [fill(world, Scope(["X0"]), rng) for world in rng.sample(worlds, count)]
            if rng.random() < 0.25:
                steps.append(rng.choice(_WORLDS_OF_MODULES if is_module else _WORLDS))
            again = first if rng.random() < 0.6 else rng.choice(_INPUTS)
            number = "2" if rng.random() < 0.6 else rng.choice(_NUMBERS)
            called = rng.random()
            if called < 0.1:
                steps.append(_around(rng.choice(_AROUND), f"run({again}, {number})"))
            elif called < 0.2:
                steps.append(rng.choice(_CALLS).format(x=again, n=number))
            else:
                steps.append(f"run({again}, {number})")
        if rng.random() < 0.08:
            around = rng.choice(_AROUND)
            steps = [_around(around, step) if "run(" in step else step for step in steps]
        return tuple(steps)


def _around(context: str, call: str) -> str:
    """The call in a `with` block."""
    call = f"R.append({call})" if call.startswith("run(") else call
    return f"with {context}:\n" + textwrap.indent(call, "    ")


_SHARED = """\
X0 = torch.arange(6.0).reshape(2, 3) + 1
X1 = torch.ones(3, requires_grad=True)
W = torch.eye(3) * 2
R = []


def attempt(question):
    try:
        return question()
    except Exception as error:
        return type(error).__name__
"""
_METHODS = {"module": "forward", "method": "step", "callable": "__call__"}
_CLASSES = {
    "module": "class Model(nn.Module):\n{body}\n\n\nENTRY = Model()",
    "method": "class Host:\n{body}\n\n\nHOST = Host()\nENTRY = HOST.step",
    "callable": "class Host:\n{body}\n\n\nENTRY = Host()",
}
_WORLDS = (
    "X0.add_(1)",
    "X0 = X0.clone()",
    "W.mul_(2)",
    "W = torch.eye(3)",
    "W = W.t()",
    "X1.requires_grad_(not X1.requires_grad)",
    "X1.grad = torch.ones(3)",
    "gc.collect()",
    "torch.manual_seed(3)",
    "R.clear()",
    "X0.resize_(2, 3)",
)
_WORLDS_OF_MODULES = (
    *_WORLDS,
    "run.forward = (lambda old: lambda *a: old(*a))(run.forward)",
    "ENTRY.forward = (lambda old: lambda *a: old(*a))(ENTRY.forward)",
    "run.register_forward_hook(lambda m, a, out: LOG.append('hook'))",
    "ENTRY.register_forward_pre_hook(lambda m, a: LOG.append('pre'))",
    "run.eval()",
    "ENTRY.train(False)",
    "run.extra = 1",
    "run = copy.deepcopy(run)",
    "run.register_buffer('late', torch.ones(3))",
    "run.double().float()",
    "Model.forward = (lambda old: lambda self, *a: [LOG.append(0), old(self, *a)])(Model.forward)",
)
_NUMBERS = ("0", "1", "3", "7", "-1", "True", "2.5", "0.5", "1.0")
_CALLS = (
    "R.append(torch.utils.checkpoint.checkpoint(run, {x}, {n}, use_reentrant=False))",
    "R.append(torch.utils.checkpoint.checkpoint(run, X1 * X0, {n}, use_reentrant=False)); "
    "R[-1][-1].sum().backward()",
    "R.append(run({x}, {n})[-1]); R[-1].sum().backward()",
    "R.append(run((X1 * 1).expand(2, 3), {n})[-1]); R[-1].sum().backward()",
    "R.append(torch.func.jvp(lambda v: run(v, {n})[-1], (X0,), (X0,)))",
    "R.append(torch.func.grad(lambda v: run(v, {n})[-1].sum())(X0))",
    "R.append(torch.jit.trace(lambda v: run(v, {n})[-1], (X0,), check_trace=False)(X0 * 3))",
    "t = threading.Thread(target=lambda: R.append(run({x}, {n}))); t.start(); t.join(); del t",
    "R.append(functools.partial(run, n={n})({x}))",
    "R.append(run(x={x}, n={n}))",
    "R.append([run(v, {n}) for v in (X0, X0)])",
    "R.append(torch.vmap(lambda v: run(v[None], {n})[-1])(X0))",
    "R.append(run(run({x}, {n})[-1], {n}))",
    "R.append(run({x}, {n}, 5))",
    "R.append(run('text', {n}))",
    "R.append(run({x}.double(), {n}))",
)
_AROUND = (
    "torch.no_grad()",
    "torch.no_grad()",
    "torch.inference_mode()",
    "torch.autocast('cpu', torch.bfloat16)",
    "warnings.catch_warnings()",
    "contextlib.redirect_stdout(io.StringIO())",
    "torch.autograd.set_detect_anomaly(True)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t)",
)
