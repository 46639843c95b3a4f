"""Tensor expressions, with the shape and dtype that they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tests.fuzz.scalars import boolean, integer, number
from tests.fuzz.scope import Place, Rules, Scope, Shape

DTYPES = {"f": "torch.float32", "d": "torch.float64", "i": "torch.int64", "b": "torch.bool"}
_ORDER = "bifd"
rules = Rules()


@final
@dataclass(frozen=True, slots=True)
class Written:
    """Text of an expression, atomic or in parentheses, and what it gives."""

    text: str
    shape: Shape
    dtype: str


def tensor(scope: Scope, depth: int = 2) -> Written:
    """Any tensor expression."""
    if depth <= 0 or scope.draft.fuel <= 0:
        return leaf(scope)
    return rules.write(scope, depth) or leaf(scope)


def leaf(scope: Scope) -> Written:
    """A tensor place, or a small new tensor."""
    places = scope.of("tensor")
    if places and scope.chance(0.93):
        place = scope.pick(places[-6:] if scope.chance(0.5) else places)
        return Written(place.text, place.shape, place.dtype)
    shape = scope.pick([(2, 3), (3,), (2, 1), ()])
    return Written(f"T({', '.join(map(str, shape))})", shape, "f")


def floating(scope: Scope, depth: int = 2) -> Written:
    """A tensor expression of a floating dtype."""
    found = tensor(scope, depth)
    if found.dtype in "fd":
        return found
    return Written(f"{found.text}.float()", found.shape, "f")


def tensor_like(scope: Scope, shape: Shape, dtype: str, depth: int = 2) -> str:
    """The text of an expression that has this shape and dtype."""
    for _ in range(4):
        found = tensor(scope, depth)
        if (found.shape, found.dtype) == (shape, dtype):
            return found.text
    base = [p for p in scope.of("tensor") if (p.shape, p.dtype) == (shape, dtype)]
    if not base:
        if dtype in "fd" and scope.chance(0.5):
            return f"torch.full({shape}, {number(scope, 1)}, dtype={DTYPES[dtype]})"
        start = scope.rng.randrange(9)
        inside = "".join(f"{size}, " for size in shape)
        return f"T({inside}dtype={DTYPES[dtype]}, start={start})"
    text = scope.pick(base).text
    if dtype == "b":
        return f"{text}.logical_not()"
    if dtype == "i":
        return f"({text} + {integer(scope, 1)})"
    form = scope.pick(["({} * {})", "({} + {})", "({} - {})"])
    return form.format(text, number(scope, 1))


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """The shape of an elementwise operation, None where there is none."""
    sizes = []
    for n in range(1, max(len(left), len(right)) + 1):
        a = left[-n] if n <= len(left) else 1
        b = right[-n] if n <= len(right) else 1
        if a != b and 1 not in (a, b):
            return None
        sizes.append(b if a == 1 else a)
    return tuple(reversed(sizes))


def promote(left: Written, right: Written) -> str:
    """The dtype of an elementwise operation."""
    if bool(left.shape) == bool(right.shape):
        return max(left.dtype, right.dtype, key=_ORDER.index)
    tensor, number = (left, right) if left.shape else (right, left)
    if number.dtype in "fd" and tensor.dtype not in "fd":
        return number.dtype
    return number.dtype if tensor.dtype == "b" else tensor.dtype


# --- elementwise -----------------------------------------------------------------------------

_UNARY = (
    "torch.sin({})",
    "torch.relu({})",
    "torch.tanh({})",
    "{}.sigmoid()",
    "F.gelu({})",
    "{}.square()",
    "{}.exp()",
    "F.softplus({})",
)
_KEEPING = (
    "torch.neg({})",
    "{}.abs()",
    "{}.clone()",
    "{}.detach()",
    "{}.contiguous()",
    "(-{})",
    "{}.clamp(-1, 2)",
    "{}.flip(0)",
    "{}.roll(1)",
)


@rules(6)
def _unary(scope: Scope, depth: int) -> Written:
    inner = floating(scope, depth - 1)
    return Written(scope.pick(_UNARY).format(inner.text), inner.shape, inner.dtype)


@rules(4)
def _keeping(scope: Scope, depth: int) -> Written | None:
    inner = tensor(scope, depth - 1)
    if inner.dtype == "b" or not inner.shape:
        return None
    return Written(scope.pick(_KEEPING).format(inner.text), inner.shape, inner.dtype)


@rules(10)
def _binary(scope: Scope, depth: int) -> Written | None:
    left, right = tensor(scope, depth - 1), tensor(scope, depth - 1)
    shape = broadcast(left.shape, right.shape)
    if shape is None or "b" in (left.dtype, right.dtype):
        return None
    op = scope.pick(["+", "-", "*", "+", "*"])
    return Written(f"({left.text} {op} {right.text})", shape, promote(left, right))


@rules(8)
def _with_number(scope: Scope, depth: int) -> Written | None:
    inner = floating(scope, depth - 1)
    other = number(scope, 2) if scope.chance(0.6) else integer(scope, 2)
    form = scope.pick(["({0} {2} {1})", "({1} {2} {0})", "torch.add({0}, {1})"])
    text = form.format(inner.text, other, scope.pick("+-*"))
    return Written(text, inner.shape, inner.dtype)


@rules(2)
def _compare(scope: Scope, depth: int) -> Written | None:
    left = tensor(scope, depth - 1)
    if left.dtype == "b":
        return None
    op = scope.pick([">", "<=", "==", "!="])
    return Written(f"({left.text} {op} {integer(scope, 1)})", left.shape, "b")


@rules(2)
def _where(scope: Scope, depth: int) -> Written | None:
    condition, other = tensor(scope, depth - 1), floating(scope, depth - 1)
    shape = broadcast(condition.shape, other.shape)
    if shape is None or condition.dtype == "b" or other.dtype != "f":
        return None
    text = f"torch.where({condition.text} > 0, {other.text}, {number(scope, 1)})"
    return Written(text, shape, "f")


@rules(1.5)
def _converted(scope: Scope, depth: int) -> Written:
    inner = tensor(scope, depth - 1)
    dtype = scope.pick("fffdi")
    method = {"f": "float()", "d": "double()", "i": "long()"}[dtype]
    if scope.chance(0.4):
        method = f"to({DTYPES[dtype]})"
    return Written(f"{inner.text}.{method}", inner.shape, dtype)


@rules(1)
def _random(scope: Scope, depth: int) -> Written:
    inner = floating(scope, 0)
    form = scope.pick(
        [
            "torch.rand_like({})",
            "torch.randn_like({})",
            "F.dropout({}, 0.5)",
            "F.dropout({}, 0.25, training=True)",
            "torch.bernoulli({}.sigmoid())",
        ]
    )
    return Written(form.format(inner.text), inner.shape, inner.dtype)


# --- views -----------------------------------------------------------------------------------


@rules(10)
def view(scope: Scope, depth: int) -> Written | None:
    """A view of a tensor (or, from `reshape`, perhaps a copy)."""
    inner = tensor(scope, depth - 1)
    if not inner.shape:
        text = scope.pick(["unsqueeze(0)", "reshape(1)", "expand(3)"])
        return Written(f"{inner.text}.{text}", (3,) if "expand" in text else (1,), inner.dtype)
    return _vector_view(scope, inner) if len(inner.shape) == 1 else _matrix_view(scope, inner)


def _vector_view(scope: Scope, inner: Written) -> Written:
    (n,) = inner.shape
    forms: list[tuple[str, Shape]] = [
        (".unsqueeze(0)", (1, n)),
        (".unsqueeze(-1)", (n, 1)),
        ("[None]", (1, n)),
        ("[0]", ()),
        ("[-1]", ()),
        (".expand(2, -1)", (2, n)),
        (".view(1, -1)", (1, n)),
        (".reshape(-1)", (n,)),
    ]
    if n > 1:
        forms += [("[1:]", (n - 1,)), ("[:-1]", (n - 1,)), (".narrow(0, 0, 1)", (1,))]
        forms += [("[::2]", ((n + 1) // 2,)), (".as_strided((2,), (1,))", (2,))]
    text, shape = scope.pick(forms)
    return Written(inner.text + text, shape, inner.dtype)


def _matrix_view(scope: Scope, inner: Written) -> Written | None:
    if len(inner.shape) != 2:
        return None
    n, m = inner.shape
    forms: list[tuple[str, Shape]] = [
        (".t()", (m, n)),
        (".transpose(0, 1)", (m, n)),
        (".permute(1, 0)", (m, n)),
        ("[0]", (m,)),
        ("[:, 0]", (n,)),
        ("[..., -1]", (n,)),
        (".select(1, 0)", (n,)),
        (".reshape(-1)", (n * m,)),
        (".flatten()", (n * m,)),
        (".diagonal()", (min(n, m),)),
        (".T.mT", (n, m)),
        ("[:]", (n, m)),
        (".view_as({0})", (n, m)),
        (".unbind(0)[-1]", (m,)),
        (".chunk(2, 1)[0]", (n, (m + 1) // 2)),
        (".split(1)[0]", (1, m)),
    ]
    if n > 1:
        forms += [("[1:]", (n - 1, m)), (".narrow(0, 1, 1)", (1, m))]
    if m > 1:
        forms += [("[:, 1:]", (n, m - 1)), ("[:, :-1]", (n, m - 1)), ("[..., :1]", (n, 1))]
    if 1 in (n, m):
        rest = tuple(size for size in inner.shape if size != 1)
        forms += [(".squeeze()", rest), (".expand(3, 3)", (3, 3))][: 2 if 3 in (n, m) else 1]
    text, shape = scope.pick(forms)
    return Written(inner.text + text.format(inner.text), shape, inner.dtype)


@rules(1)
def _gathered(scope: Scope, depth: int) -> Written | None:
    inner = tensor(scope, depth - 1)
    if not inner.shape:
        return None
    text = scope.pick(
        ["[[0, 0]]", "[torch.tensor([0, -1])]", ".index_select(0, torch.tensor([0, 0]))"]
    )
    return Written(inner.text + text, (2, *inner.shape[1:]), inner.dtype)


# --- reductions and products -------------------------------------------------------------------


@rules(5)
def _reduced(scope: Scope, depth: int) -> Written | None:
    inner = floating(scope, depth - 1)
    shape = inner.shape
    if not shape:
        return None
    forms: list[tuple[str, Shape]] = [
        ("sum()", ()),
        ("mean()", ()),
        ("max()", ()),
        ("sum(0)", shape[1:]),
        ("amax(-1)", shape[:-1]),
        ("mean(0, keepdim=True)", (1, *shape[1:])),
        ("sum(dim=-1, keepdim=True)", (*shape[:-1], 1)),
        ("cumsum(0)", shape),
        ("softmax(-1)", shape),
        ("sort(-1)[0]", shape),
        ("max(0).values", shape[1:]),
        ("norm()", ()),
    ]
    text, result = scope.pick(forms)
    return Written(f"{inner.text}.{text}", result, inner.dtype)


@rules(1.5)
def _product(scope: Scope, depth: int) -> Written | None:
    left, right = floating(scope, depth - 1), floating(scope, depth - 1)
    if len(left.shape) != 2 or len(right.shape) != 2 or left.dtype != right.dtype:
        return None
    if left.shape[1] == right.shape[0]:
        return Written(f"({left.text} @ {right.text})", (left.shape[0], right.shape[1]), left.dtype)
    if left.shape[1] == right.shape[1]:
        text = f"F.linear({left.text}, {right.text})"
        return Written(text, (left.shape[0], right.shape[0]), left.dtype)
    return None


@rules(2.5)
def _joined(scope: Scope, depth: int) -> Written | None:
    first, second = tensor(scope, depth - 1), tensor(scope, depth - 1)
    if (first.shape, first.dtype) != (second.shape, second.dtype) or len(first.shape) > 1:
        return None
    inside = f"[{first.text}, {second.text}]"
    if first.shape and scope.chance(0.4):
        return Written(f"torch.cat({inside})", (2 * first.shape[0],), first.dtype)
    return Written(f"torch.stack({inside})", (2, *first.shape), first.dtype)


# --- from Python values ------------------------------------------------------------------------


@rules(2)
def _made(scope: Scope, depth: int) -> Written:
    forms: list[tuple[str, Shape, str]] = [
        (f"torch.tensor({number(scope, 1)}, dtype=torch.float32)", (), "f"),
        (f"torch.full((3,), {number(scope, 1)}, dtype=torch.float32)", (3,), "f"),
        (f"torch.tensor([{integer(scope, 1)}, {integer(scope, 1)}, 1])", (3,), "i"),
        ("torch.arange(3)", (3,), "i"),
        ("torch.zeros(2, 3)", (2, 3), "f"),
        ("torch.eye(3)", (3, 3), "f"),
    ]
    text, shape, dtype = scope.pick(forms)
    return Written(text, shape, dtype)


@rules(2)
def _like(scope: Scope, depth: int) -> Written:
    inner = tensor(scope, 0)
    form = scope.pick(["torch.zeros_like({})", "torch.ones_like({})", "{}.new_ones({}.shape)"])
    return Written(form.replace("{}", inner.text), inner.shape, inner.dtype)


@rules(2.5)
def _chosen(scope: Scope, depth: int) -> Written | None:
    first, second = tensor(scope, depth - 1), tensor(scope, depth - 1)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return None
    text = f"({first.text} if {boolean(scope, 2)} else {second.text})"
    return Written(text, first.shape, first.dtype)


@rules(3)
def _from_list(scope: Scope, depth: int) -> Written | None:
    places = scope.of("tensors")
    if not places:
        return None
    place = scope.pick(places)
    forms = [
        "{0}[0]",
        "{0}[-1]",
        "sum({0})",
        "torch.stack({0})[0]",
        "sum(q * 2 for q in {0})",
        "functools.reduce(lambda a, b: a + b, {0})",
        "[q + 1 for q in {0}][-1]",
        "max({0}, key=lambda q: q.dim())",
        "next(iter({0}))",
    ]
    return Written(scope.pick(forms).format(place.text), place.shape, place.dtype)


@rules(3)
def _from_table(scope: Scope, depth: int) -> Written | None:
    places = scope.of("table")
    if not places:
        return None
    place = scope.pick(places)
    key = scope.pick(["a", "b", "a", "c"])
    default = tensor_like(scope, place.shape, place.dtype, 0)
    forms = [
        "{0}['a']",
        "{0}.get('{1}', {2})",
        "sum({0}.values())",
        "{0}['{1}']",
        "{{k: v + 1 for k, v in {0}.items()}}['a']",
        "{0}.setdefault('{1}', {2})",
    ]
    text = scope.pick(forms).format(place.text, key, default)
    return Written(text, place.shape, place.dtype)


@rules(5)
def _called(scope: Scope, depth: int) -> Written | None:
    places = scope.of("function")
    if not places or scope.depth > 4:
        return None
    place = scope.pick(places)
    argument = tensor_like(scope, (2, 3), "f", depth - 1)
    extra = ""
    if scope.chance(0.3):
        extra = f", {integer(scope, 1)}"
    elif scope.chance(0.25):
        extra = f", k={integer(scope, 1)}"
    return Written(f"{place.text}({argument}{extra})", place.shape, place.dtype)


@rules(6)
def _by_an_item(scope: Scope, depth: int) -> Written | None:
    """A call of a function that a list holds."""
    places = scope.of("ops")
    if not places:
        return None
    form = scope.pick(["{0}[0]({1})", "{0}[1]({1})", "{0}[-1]({1})"])
    argument = tensor_like(scope, (2, 3), "f", depth - 1)
    return Written(form.format(scope.pick(places).text, argument), (2, 3), "f")


@rules(4)
def _of_box(scope: Scope, depth: int) -> Written | None:
    places = scope.of("box")
    if not places:
        return None
    place = scope.pick(places)
    argument = tensor_like(scope, (2, 3), "f", depth - 1)
    form = scope.pick(
        [
            "{0}.step({1})",
            "{0}({1})",
            "{0}.scaled({1})",
            "{0}.half",
            "{0}.pure({1})",
            "type({0}).made({1}).t",
        ]
    )
    return Written(form.format(place.text, argument), (2, 3), "f")


@rules(3)
def _of_net(scope: Scope, depth: int) -> Written | None:
    places = scope.of("net")
    if not places:
        return None
    argument = tensor_like(scope, (2, 3), "f", depth - 1)
    return Written(f"{scope.pick(places).text}({argument})", (2, 3), "f")


def place_of(written: Written, text: str, owner: str = "local") -> Place:
    """The place that an assignment makes."""
    inplace = ".expand" not in written.text
    return Place(text, "tensor", written.shape, written.dtype, owner, inplace=inplace)
