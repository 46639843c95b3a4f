"""Statements: lines of text, and what they make visible."""

from __future__ import annotations

from tests.fuzz.scalars import boolean, integer, number, string
from tests.fuzz.scope import Place, Rules, Scope
from tests.fuzz.tensor_expressions import broadcast, place_of, tensor, tensor_like

simple, compound = Rules(), Rules()
_SCALARS = {"int": integer, "float": number, "bool": boolean, "str": string}


def block(scope: Scope, size: int) -> list[str]:
    """A few statements; at least one line."""
    lines: list[str] = []
    for _ in range(scope.rng.randint(1, size)):
        lines += statement(scope)
        if lines[-1].split(" ")[0] in ("return", "raise", "break", "continue"):
            break
    return lines


def statement(scope: Scope) -> list[str]:
    """One statement, a block if there is fuel for it."""
    scope.draft.fuel -= 1
    nested = scope.draft.fuel > 0 and scope.depth < 4 and scope.chance(0.3)
    lines: list[str] | None = (compound if nested else simple).write(scope)
    return lines or ["pass"]


def indented(lines: list[str]) -> list[str]:
    """One level deeper."""
    return [f"    {line}" for line in lines]


# --- assignments -------------------------------------------------------------------------------


@simple(10)
def _new_tensor(scope: Scope) -> list[str]:
    written = tensor(scope, scope.rng.choice([1, 2, 2, 3]))
    name = scope.draft.fresh("v")
    scope.add(place_of(written, name))
    return [f"{name} = {written.text}"]


@simple(4)
def _new_scalar(scope: Scope) -> list[str]:
    kind = scope.pick(["int", "int", "float", "bool", "str"])
    text = _SCALARS[kind](scope, 2)
    name = scope.draft.fresh("n")
    scope.add(Place(name, kind))
    return [f"{name} = {text}"]


@simple(7)
def _assign_scalar(scope: Scope) -> list[str] | None:
    places = [p for p in scope.of(*_SCALARS) if p.written]
    if not places:
        return None
    place = scope.pick(places)
    scope.note_assignment(place)
    text = _SCALARS[place.kind](scope, 2)
    if place.kind in ("int", "float") and scope.chance(0.6):
        return [f"{place.text} {scope.pick(['+=', '-=', '+='])} {text}"]
    return [f"{place.text} = {text}"]


@simple(6)
def _assign_tensor(scope: Scope) -> list[str] | None:
    places = [p for p in scope.of("tensor") if p.written]
    if not places:
        return None
    place = scope.pick(places)
    scope.note_assignment(place)
    return [f"{place.text} = {tensor_like(scope, place.shape, place.dtype, 2)}"]


@simple(2)
def _alias(scope: Scope) -> list[str] | None:
    places = scope.of("tensor", "tensors", "table", "box", "ints", "counts")
    if not places:
        return None
    place = scope.pick(places)
    name = scope.draft.fresh("w")
    scope.add(Place(name, place.kind, place.shape, place.dtype, "local", inplace=place.inplace))
    return [f"{name} = {place.text}"]


@simple(2)
def _unpack(scope: Scope) -> list[str] | None:
    first, second = tensor(scope, 1), integer(scope, 1)
    a, b = scope.draft.fresh("v"), scope.draft.fresh("n")
    scope.add(place_of(first, a))
    scope.add(Place(b, "int"))
    if scope.chance(0.3):
        rest = scope.draft.fresh("l")
        scope.add(Place(rest, "ints"))
        return [f"{a}, {b}, *{rest} = {first.text}, {second}, 1, {second}"]
    return [f"{a}, {b} = {first.text}, {second}"]


@simple(1)
def _swap(scope: Scope) -> list[str] | None:
    places = [p for p in scope.of("tensor") if p.written]
    for first in places:
        for second in places:
            same = (first.shape, first.dtype) == (second.shape, second.dtype)
            if same and first is not second and scope.chance(0.3):
                scope.note_assignment(first)
                scope.note_assignment(second)
                return [f"{first.text}, {second.text} = {second.text}, {first.text}"]
    return None


@simple(1)
def _walrus(scope: Scope) -> list[str]:
    name, other = scope.draft.fresh("n"), scope.draft.fresh("n")
    text = f"{other} = ({name} := {integer(scope, 1)}) + 1"
    scope.add(Place(name, "int"))
    scope.add(Place(other, "int"))
    return [text]


# --- tensors written in place ------------------------------------------------------------------


def _writable(scope: Scope) -> Place | None:
    places = [p for p in scope.of("tensor") if p.inplace and p.dtype in "fdi"]
    return scope.pick(places) if places else None


@simple(9)
def _in_place(scope: Scope) -> list[str] | None:
    place = _writable(scope)
    if place is None:
        return None
    target = place.text
    if scope.chance(0.35):
        target += _part(scope, place)
    value = integer(scope, 1) if place.dtype == "i" or scope.chance(0.4) else number(scope, 1)
    forms = ["add_({})", "mul_({})", "sub_({})", "add_(1).mul_({})"]
    if place.dtype in "fd":
        forms += ["relu_()", "clamp_(-1, 1)", "neg_()", "sin_()"]
    return [f"{target}.{scope.pick(forms).format(value)}"]


def _part(scope: Scope, place: Place) -> str:
    if len(place.shape) == 2:
        return scope.pick(
            [
                "[0]",
                "[:, 0]",
                ".t()",
                "[1:]",
                "[..., -1]",
                ".reshape(-1)",
                ".detach()",
                ".view(-1)",
                ".diagonal()",
                ".data",
            ]
        )
    return (
        scope.pick([".view(1, -1)", "[1:]", ".detach()", ".data"]) if place.shape else ".detach()"
    )


@simple(3)
def _overwritten(scope: Scope) -> list[str] | None:
    """All of a tensor overwritten. Beside its history: eager goes on with one that has no effect,
    which a graph without writes does not have."""
    place = _writable(scope)
    if place is None:
        return None
    value = integer(scope, 1) if place.dtype == "i" else number(scope, 1)
    forms = ["fill_({})", "zero_()"]
    if place.dtype in "fd":
        forms += ["normal_()", "uniform_()"]
    return [f"{place.text}.detach().{scope.pick(forms).format(value)}"]


@simple(5)
def _augmented(scope: Scope) -> list[str] | None:
    place = _writable(scope)
    if place is None or (place.dtype == "i"):
        return None
    if place.written:
        scope.note_assignment(place)
        target = place.text
    else:
        target = place.text + "[...]"
        if not place.shape:
            return None
    value = _broadcast_onto(scope, place)
    return [f"{target} {scope.pick(['+=', '*=', '-='])} {value}"]


@simple(4)
def _set_item(scope: Scope) -> list[str] | None:
    place = _writable(scope)
    if place is None or not place.shape:
        return None
    index = scope.pick(["0", "-1", "...", ":", "1:", f"{place.text} > 0"])
    value = number(scope, 1) if place.dtype in "fd" else integer(scope, 1)
    if place.dtype in "fd" and index in ("...", ":") and scope.chance(0.6):
        value = f"torch.as_tensor({_broadcast_onto(scope, place)}).detach()"
    whole = ".detach()" if index in ("...", ":") else ""
    return [f"{place.text}{whole}[{index}] = {value}"]


@simple(2)
def _masked(scope: Scope) -> list[str] | None:
    """What a mask chooses gets the values of a tensor, which may have gradients: one for all, or a
    row of them for each row."""
    place = _writable(scope)
    if place is None or place.dtype not in "fd" or len(place.shape) != 2:
        return None
    name = place.text
    mask, shape = scope.pick(
        [(f"{name} > 0", ()), (f"{name}[:, 0] > 0", ()), (f"{name}[:, 0] > 0", place.shape[1:])]
    )
    value = tensor_like(scope, shape, place.dtype, 1)
    form = scope.pick(["{0}[{1}] = {2}", "{0}.index_put_(({1},), {2})"])
    return [form.format(name, mask, f"({value} * 1)")]


@simple(3)
def _copy_or_add(scope: Scope) -> list[str] | None:
    place = _writable(scope)
    if place is None or place.dtype == "i":
        return None
    form = scope.pick(
        [
            "{}.detach().copy_({})",
            "{}.add_({}, alpha=2)",
            "{0}.addcmul_({0}, {1})",
            "torch.add({0}, {1}, out={0})",
        ]
    )
    value = _broadcast_onto(scope, place)
    if "detach" in form and not value[0].isdigit():
        value = f"torch.as_tensor({value}).detach()"
    return [form.format(place.text, value)]


def _broadcast_onto(scope: Scope, place: Place) -> str:
    """A value to write into a place. One that overlaps the place only in part makes what eager
    gives depend on the order of its loops, so anything but whole tensors is copied."""
    for _ in range(4):
        found = tensor(scope, 1)
        fits = broadcast(found.shape, place.shape) == place.shape and found.dtype != "b"
        if fits and not (found.dtype == "d" and place.dtype == "f" and found.shape):
            is_whole = found.text.isidentifier() and found.shape == place.shape
            return found.text if is_whole else f"({found.text} * 1)"
    return number(scope, 1) if scope.chance(0.5) else f"torch.tensor({number(scope, 0)})"


@simple(0.7)
def _requires_grad(scope: Scope) -> list[str] | None:
    places = [p for p in scope.of("tensor") if p.dtype in "fd"]
    if not places:
        return None
    place = scope.pick(places)
    form = scope.pick(
        ["{}.requires_grad_()", "{}.detach_()", "{}.grad = None", "{0}.grad = {0}.detach().clone()"]
    )
    return [form.format(place.text)]


@simple(0.7)
def _backward(scope: Scope) -> list[str] | None:
    places = [p for p in scope.of("tensor") if p.dtype in "fd"]
    if not places:
        return None
    place = scope.pick(places)
    return [f"if {place.text}.requires_grad:", f"    {place.text}.sum().backward()"]


@simple(0.4)
def _tensor_attribute(scope: Scope) -> list[str] | None:
    places = scope.of("tensor")
    return [f"{scope.pick(places).text}.note = {integer(scope, 1)}"] if places else None


def returned(scope: Scope) -> str:
    """The text of what `entry` returns: tensors, state and scalars in a container."""
    parts = [tensor(scope, 1).text for _ in range(scope.rng.randint(1, 2))]
    places = [p for p in scope.places if p.kind != "function"]
    parts += [scope.pick(places).text for _ in range(scope.rng.randint(0, 2)) if places]
    if len(parts) == 1 and scope.chance(0.5):
        return parts[0]
    if scope.chance(0.2):
        return "{" + ", ".join(f"'{chr(97 + n)}': {part}" for n, part in enumerate(parts)) + "}"
    inside = ", ".join(parts)
    return scope.pick([f"({inside},)", f"[{inside}]", f"({inside},)"])
