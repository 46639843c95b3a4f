"""The module around `entry`: globals, classes, helper functions, and the closure `entry` is."""

from __future__ import annotations

import tests.fuzz.builtin_subclasses
import tests.fuzz.control_statements
import tests.fuzz.state_statements  # noqa: F401 - registers its rules
from tests.fuzz.scope import Draft, Place, Scope
from tests.fuzz.statements import block, indented, returned
from tests.fuzz.tensor_expressions import tensor_like

SUPPORT = """\
class Trouble(ValueError):
    pass


class Guarded:
    depth = 0

    def __enter__(self):
        Guarded.depth += 1
        return self

    def __exit__(self, kind, error, trace):
        Guarded.depth -= 1
        return kind is Trouble


@contextlib.contextmanager
def logged():
    LOG.append("in")
    try:
        yield
    finally:
        LOG.append("out")


class Base:
    level = 1

    def pure(self, q):
        return q * self.level + self.k

    def weigh(self, n):
        return self.k + n


def shifted(q, by=1.0):
    return q - by
"""
GLOBALS = (
    ("g_int", "2", Place("g_int", "int", owner="global")),
    ("g_float", "0.5", Place("g_float", "float", owner="global")),
    ("g_flag", "True", Place("g_flag", "bool", owner="global")),
    ("g_word", "'u'", Place("g_word", "str", owner="global")),
    ("g_t", "T(2, 3, start=1)", Place("g_t", "tensor", (2, 3), owner="global")),
    ("g_v", "T(3, start=2)", Place("g_v", "tensor", (3,), owner="global")),
    ("g_i", "T(3, dtype=torch.int64)", Place("g_i", "tensor", (3,), "i", owner="global")),
    ("g_p", "P(2, 3, start=3)", Place("g_p", "tensor", (2, 3), "f", "global", inplace=False)),
    ("g_list", "[T(3, start=4), T(3, start=5)]", Place("g_list", "tensors", (3,), owner="global")),
    ("g_ints", "[1, 2, 3]", Place("g_ints", "ints", owner="global")),
    (
        "g_table",
        "{'a': T(2, 3), 'b': T(2, 3, start=6)}",
        Place("g_table", "table", (2, 3), "f", "global"),
    ),
    ("g_counts", "{'u': 1, 'v': 2}", Place("g_counts", "counts", owner="global")),
    ("g_set", "{1, 2}", Place("g_set", "set", owner="global")),
    ("g_ops", "[torch.sin, shifted, abs]", Place("g_ops", "ops", owner="global", written=False)),
)


def shared_places(draft: Draft) -> list[Place]:
    """Some of the globals."""
    count = draft.rng.randint(2, 6)
    return [place for _, _, place in draft.rng.sample(GLOBALS, count)]


def function_scope(draft: Draft, places: list[Place], *, depth: int = 1) -> Scope:
    """The scope of a function body."""
    scope = Scope(draft, depth=depth)
    for place in places:
        scope.add(place)
    return scope


def declared(scope: Scope, body: list[str]) -> list[str]:
    """A body behind its `global` and `nonlocal` lines."""
    words = {"global": "global", "cell": "nonlocal"}
    return [f"{words[owner]} {name}" for name, owner in sorted(scope.assigned.items())] + body


# --- classes -----------------------------------------------------------------------------------

_SELF = (
    Place("self.k", "int", owner=""),
    Place("self.s", "float", owner=""),
    Place("self.t", "tensor", (2, 3), owner=""),
    Place("self.items", "tensors", (2, 3), owner=""),
    Place("self.name", "str", owner=""),
)


def box_class(draft: Draft, number_: int, places: list[Place]) -> list[str]:
    """A class with state, properties, operators and methods written by the grammar."""
    rng = draft.rng
    head = f"class Box{number_}(Base):"
    lines = [head]
    if rng.random() < 0.2:
        lines += indented(
            ["level = 2", "__slots__ = ('k', 's', 't', 'items', 'name', 'child', 'extra')", ""]
        )
    else:
        lines += indented(["level = 2", ""])
    lines += indented(_FIXED.splitlines())
    lines += indented(
        _method(draft, "step", "self, q", "q = q + self.t" if rng.random() < 0.2 else "", places)
    )
    lines += indented(_method(draft, "__call__", "self, q, k=1", "", places))
    lines += indented(["@property", *_method(draft, "half", "self", "", places)])
    if rng.random() < 0.15:
        lines += indented(_SETATTR.splitlines())
    if rng.random() < 0.15:
        lines += indented(_GETATTR.splitlines())
    return [*lines, ""]


_FIXED = """\
def __init__(self, k, t):
    self.k = k
    self.s = 0.5
    self.t = t
    self.items = [t, t * 2]
    self.name = 'box'
    self.child = None

@classmethod
def made(cls, t):
    return cls(cls.level, t)

@staticmethod
def scaled(t, by=2):
    return t * by

@property
def twice(self):
    return self.k * 2

@twice.setter
def twice(self, value):
    self.k = value // 2

def bump(self, by=1):
    self.k += by
    return self

def __len__(self):
    return len(self.items)

def __getitem__(self, n):
    return n + self.k

def __setitem__(self, n, value):
    self.items[n] = value

def __eq__(self, other):
    return isinstance(other, Base) and self.k == other.k

__hash__ = object.__hash__

def __enter__(self):
    self.k += 1
    return self

def __exit__(self, kind, error, trace):
    self.k -= 1
    return kind is KeyError
"""
_SETATTR = """\
def __setattr__(self, name, value):
    if name == 'k':
        value = value % 50
    super().__setattr__(name, value)
"""
_GETATTR = """\
def __getattr__(self, name):
    if name == 'extra':
        return 7
    raise AttributeError(name)
"""


def _method(draft: Draft, name: str, parameters: str, first: str, places: list[Place]) -> list[str]:
    scope = function_scope(draft, [*places, *_SELF], depth=2)
    if "q" in parameters:
        scope.add(Place("q", "tensor", (2, 3)))
    if "k=" in parameters:
        scope.add(Place("k", "int"))
    scope.result = Place("", "tensor", (2, 3))
    body = [first] if first else []
    body += block(scope, 2)
    body.append(f"return {tensor_like(scope, (2, 3), 'f', 2)}")
    return [f"def {name}({parameters}):", *indented(declared(scope, body)), ""]


def net_class(draft: Draft, places: list[Place]) -> list[str]:
    """An nn.Module with a parameter, a buffer, submodules and Python state."""
    scope = function_scope(draft, places, depth=2)
    scope.add(Place("q", "tensor", (2, 3)))
    scope.add(Place("self.calls", "int", owner=""))
    scope.add(Place("self.buf", "tensor", (3,), owner=""))
    scope.add(Place("self.w", "tensor", (3,), owner="", written=False, inplace=False))
    scope.result = Place("", "tensor", (2, 3))
    layers = draft.rng.choice(
        [
            "nn.Sequential(nn.Linear(3, 3), nn.ReLU())",
            "nn.Dropout(0.5)",
            "nn.LayerNorm(3)",
            "nn.BatchNorm1d(3)",
            "nn.ModuleList([nn.Tanh(), nn.Linear(3, 3)])",
        ]
    )
    use = "for m in self.body: q = m(q)" if "List" in layers else "q = self.body(q)"
    if draft.rng.random() < 0.5:
        use = f"if self.training:\n    {use}" if "\n" not in use else use
    body = (
        use.splitlines()
        if "for m" not in use or "if" in use
        else ["for m in self.body:", "    q = m(q)"]
    )
    if "for m" in use and "if self" in use:
        body = ["if self.training:", "    for m in self.body:", "        q = m(q)"]
    body += block(scope, 3)
    body.append(f"return {tensor_like(scope, (2, 3), 'f', 2)}")
    return [
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.lin = nn.Linear(3, 3)",
        "        self.w = nn.Parameter(T(3, start=7))",
        "        self.register_buffer('buf', T(3, start=8))",
        f"        self.body = {layers}",
        "        self.calls = 0",
        "",
        "    def forward(self, q):",
        *indented(indented(declared(scope, body))),
        "",
    ]


# --- functions ---------------------------------------------------------------------------------


def helper(draft: Draft, name: str, places: list[Place]) -> list[str]:
    """A function of a tensor and an int, called by others."""
    scope = function_scope(draft, places)
    scope.add(Place("q", "tensor", (2, 3)))
    scope.add(Place("k", "int"))
    scope.add(Place("scale", "float"))
    scope.result = Place("", "tensor", (2, 3))
    signature = draft.rng.choice(
        ["q, k=1, scale=0.5", "q, k=2, *rest, scale=1.5", "q, /, k=0, *, scale=2.0, **more"]
    )
    body = block(scope, 4)
    body.append(f"return {tensor_like(scope, (2, 3), 'f', 2)}")
    return [f"def {name}({signature}):", *indented(declared(scope, body)), ""]


ARGUMENTS = (
    ("x", Place("x", "tensor", (2, 3))),
    ("y", Place("y", "tensor", (3,))),
    ("z", Place("z", "tensor", (2, 3))),
    ("n", Place("n", "int")),
    ("flag", Place("flag", "bool")),
    ("box", Place("box", "box")),
    ("lst", Place("lst", "tensors", (2, 3))),
    ("d", Place("d", "counts")),
)
CELLS = (
    ("c_int", "3", Place("c_int", "int", owner="cell")),
    ("c_t", "T(2, 3, start=9)", Place("c_t", "tensor", (2, 3), owner="cell")),
    ("c_list", "[4, 5]", Place("c_list", "ints", owner="cell")),
)


def entry(draft: Draft, places: list[Place], *, is_closure: bool) -> list[str]:
    """The function that is compiled."""
    cells = [place for _, _, place in CELLS] if is_closure else []
    scope = function_scope(draft, [*places, *cells])
    for _, place in ARGUMENTS:
        if place.kind == "box" and not draft.boxes:
            continue
        scope.add(place)
    body = block(scope, 3)
    while draft.fuel > 0:
        body += block(scope, 4)
        draft.fuel -= 4
    body.append(f"return {returned(scope)}")
    head = "def entry(x, y, z=None, n=2, flag=True, box=None, lst=None, d=None):"
    lines = [head, *indented(declared(scope, body))]
    if not is_closure:
        return [*lines, ""]
    made = [f"{name} = {text}" for name, text, _ in CELLS]
    setter = ["def set_cell(value):", "    nonlocal c_int", "    c_int = value", ""]
    last = [
        "def set_cell_t(value):",
        "    nonlocal c_t",
        "    c_t = value",
        "",
        "return entry, set_cell, set_cell_t",
    ]
    return [
        "def outer():",
        *indented([*made, "", *lines, "", *setter, *last]),
        "",
        "entry, set_cell, set_cell_t = outer()",
        "",
    ]
