"""Stateful programs over instances of subclasses of dict, list and exceptions."""

from __future__ import annotations

from tests.fuzz.scalars import integer, integers, string
from tests.fuzz.scope import Place, Scope
from tests.fuzz.statements import simple
from tests.fuzz.tensor_expressions import Written, rules, tensor_like

SUPPORT = """\
class Bag(dict):
    limit = 3

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.writes = 0

    def __setitem__(self, key, value):
        self.writes += 1
        super().__setitem__(key, value)

    def __missing__(self, key):
        return self.limit

    def total(self):
        return sum(self.values()) + self.writes


class Row(list):
    def __init__(self, items=(), step=1):
        super().__init__(items)
        self.step = step

    def push(self, item):
        self.append(item)
        self.step += 1
        return self

    def joined(self):
        return sum(self[1:], self[0]) * self.step


class Failure(RuntimeError):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code
        self.seen = []

    def note(self, item):
        self.seen.append(item)
        return self


g_bag = Bag(u=1, v=2)
g_row = Row([T(3, start=4), T(3, start=5)])
g_failure = Failure("f", 2)
"""
PLACES = (
    Place("g_bag", "counts", owner="global", written=False),
    Place("g_row", "tensors", (3,), owner="global", written=False),
)
CLASSES = frozenset({"Bag", "Row", "Failure"})
CHANGES = (
    "g_bag.limit = 7",
    "Bag.limit = 5",
    "g_bag.writes = 9",
    "g_bag['u'] = 2.5",
    "dict.__setitem__(g_bag, 'u', 8)",
    "g_bag.extra = 1",
    "Bag.total = lambda self: 4",
    "Bag.__missing__ = lambda self, key: 9",
    "del Bag.__missing__",
    "Bag.__getitem__ = lambda self, key: 3",
    "Bag.__setitem__ = dict.__setitem__",
    "Bag.__len__ = lambda self: 5",
    "Bag.values = lambda self: [4, 4]",
    "g_bag = Bag(g_bag, w=3)",
    "g_bag = dict(g_bag)",
    "class Bag2(Bag): limit = 8\ng_bag.__class__ = Bag2",
    "g_row.append(T(3))",
    "g_row.step = 4",
    "g_row.step = 0.5",
    "del g_row.step",
    "Row.push = lambda self, item: self",
    "Row.step = 6",
    "Row.__len__ = lambda self: 1",
    "Row.__getitem__ = lambda self, n: list.__getitem__(self, 0)",
    "Row.__iter__ = lambda self: iter([T(3)])",
    "g_row[0] = g_row[1]",
    "g_row = list(g_row)",
    "g_row = Row(g_row, 3)",
    "g_failure.code = 7",
    "g_failure.args = ('x',)",
    "g_failure.seen.append(1)",
    "Failure.__str__ = lambda self: 'z'",
    "Failure.note = lambda self, item: self",
    "g_failure = Failure('again', 3)",
)


def _has(scope: Scope) -> bool:
    return any(place.text == "g_bag" for place in scope.places)


@simple(3)
def _changed_instance(scope: Scope) -> list[str] | None:
    if not _has(scope):
        return None
    item = tensor_like(scope, (3,), "f", 1)
    forms = [
        f"g_bag['w'] = {integer(scope, 1)}",
        f"g_bag.limit = {integer(scope, 1)}",
        "g_bag.writes += 1",
        f"g_bag.note = {string(scope, 1)}",
        f"g_row.push({item})",
        f"g_row.step = {integer(scope, 1)}",
        f"g_row[0] = {item}",
        f"Row([{item}]).push(g_row[0])",
        f"g_failure.code += {integer(scope, 1)}",
        f"g_failure.note({integer(scope, 1)}).note({item})",
        f"g_failure.args = ({string(scope, 1)}, {integer(scope, 1)})",
        f"g_bag = Bag(g_bag, w={integer(scope, 1)})",
    ]
    form = scope.pick(forms)
    if form.startswith("g_bag ="):
        scope.note_assignment(PLACES[0])
    return [form]


@simple(1)
def _raised_instance(scope: Scope) -> list[str] | None:
    if not _has(scope):
        return None
    made = scope.pick(["g_failure", f"Failure({string(scope, 1)}, {integer(scope, 1)})"])
    name = scope.draft.fresh("x")
    return [
        "try:",
        f"    raise {made}",
        f"except Failure as {name}:",
        f"    {name}.note({name}.code)",
        f"    print({name}, {name}.args)",
    ]


@integers(1)
def _of_instance(scope: Scope, depth: int) -> str | None:
    if not _has(scope):
        return None
    forms = ["g_bag.total()", "g_bag['w']", "g_bag.writes", "g_row.step", "g_failure.code"]
    return scope.pick([*forms, "len(g_failure.seen)", "len(vars(g_bag))", "g_bag.limit"])


@rules(1.5)
def _of_row(scope: Scope, depth: int) -> Written | None:
    if not _has(scope):
        return None
    forms = ["g_row.joined()", "g_row[-1]", "(g_row[0] + g_bag.total())", "[*g_row][0]"]
    return Written(scope.pick(forms), (3,), "f")
