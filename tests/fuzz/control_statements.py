"""Statements of control: branches, loops, handlers, functions; and effects on the process."""

from __future__ import annotations

from tests.fuzz.scalars import boolean, integer, small, string
from tests.fuzz.scope import Place, Scope
from tests.fuzz.statements import block, compound, indented, simple
from tests.fuzz.tensor_expressions import tensor_like

# --- control and effects -----------------------------------------------------------------------


@simple(1.5)
def _print(scope: Scope) -> list[str]:
    return [f"print({string(scope, 1)}, {integer(scope, 1)})"]


@simple(0.5)
def _seed(scope: Scope) -> list[str]:
    return [
        scope.pick(
            [
                "torch.manual_seed(3)",
                "random.seed(3)",
                "braze.graph_break()",
                "torch.set_grad_enabled(True)",
                "random.random()",
                "torch.rand(2)",
                "torch.set_grad_enabled(False)",
            ]
        )
    ]


@simple(1)
def _raise(scope: Scope) -> list[str] | None:
    error = scope.pick(["ValueError", "KeyError", "Trouble"])
    text = f"raise {error}({string(scope, 1)})"
    if scope.depth > 1 and scope.chance(0.3):
        return [text]
    return [f"if {boolean(scope, 2)}:", f"    {text}"]


@simple(1)
def _assert(scope: Scope) -> list[str]:
    return [f"assert {boolean(scope, 2)} or {boolean(scope, 1)}, {string(scope, 0)}"]


@simple(1)
def _leave(scope: Scope) -> list[str] | None:
    if scope.in_loop and scope.chance(0.7):
        return [f"if {boolean(scope, 2)}:", f"    {scope.pick(['break', 'continue'])}"]
    if scope.in_function and scope.depth > 1 and scope.result is not None:
        result = tensor_like(scope, scope.result.shape, scope.result.dtype, 1)
        return [f"return {result}"]
    return None


@simple(0.7)
def _delete(scope: Scope) -> list[str] | None:
    names = [p for p in scope.of("tensor", "int") if p.owner == "local" and p.text[:1] in "vn"]
    if not names or scope.depth > 1:
        return None
    place = scope.pick(names)
    scope.places = [p for p in scope.places if p.text != place.text]
    return [f"del {place.text}"]


# --- blocks ------------------------------------------------------------------------------------


@compound(8)
def _if(scope: Scope) -> list[str]:
    lines = [f"if {boolean(scope, 2)}:", *indented(block(scope.branch(), 3))]
    if scope.chance(0.25):
        lines += [f"elif {boolean(scope, 2)}:", *indented(block(scope.branch(), 2))]
    if scope.chance(0.5):
        lines += ["else:", *indented(block(scope.branch(), 3))]
    return lines


@compound(6)
def _for(scope: Scope) -> list[str]:
    inner = scope.branch(in_loop=True)
    index = scope.draft.fresh("i")
    inner.add(Place(index, "int", written=False))
    header = f"for {index} in range({small(scope)}):"
    if scope.chance(0.2):
        header = f"for {index} in reversed(range({small(scope)})):"
    lines = [header, *indented(block(inner, 3))]
    if scope.chance(0.1):
        lines += ["else:", *indented(block(scope.branch(), 2))]
    return lines


@compound(5)
def _for_items(scope: Scope) -> list[str] | None:
    places = scope.of("tensors", "table", "ints", "counts", "tensor")
    if not places:
        return None
    place = scope.pick(places)
    inner = scope.branch(in_loop=True)
    item, other = scope.draft.fresh("e"), scope.draft.fresh("i")
    kind = "tensor" if place.kind in ("tensors", "table", "tensor") else "int"
    shape = place.shape[1:] if place.kind == "tensor" else place.shape
    if place.kind == "tensor" and not place.shape:
        return None
    inner.add(Place(item, kind, shape, place.dtype, written=False, inplace=place.inplace))
    keyed = place.kind in ("table", "counts")
    inner.add(Place(other, "str" if keyed else "int", written=False))
    text = f"list({place.text}.items())" if keyed else f"enumerate({place.text})"
    if not keyed and place.kind != "tensor":
        text = scope.pick(
            [
                text,
                f"enumerate(list({place.text}))",
                f"zip(range(3), {place.text})",
                f"enumerate({place.text}[:4], 1)",
            ]
        )
    if keyed and scope.chance(0.4):
        text = f"{place.text}.items()"
    if place.kind in ("tensors", "ints") and "list(" not in text and "zip" not in text:
        text = f"zip(range(4), {place.text})"
    return [f"for {other}, {item} in {text}:", *indented(block(inner, 3))]


@compound(2.5)
def _while(scope: Scope) -> list[str]:
    name = scope.draft.fresh("n")
    inner = scope.branch(in_loop=True)
    inner.add(Place(name, "int", written=False))
    head = [
        f"{name} = {small(scope)}",
        f"while {name} > 0{scope.pick([''] * 3 + [' and ' + boolean(scope, 1)])}:",
    ]
    return [*head, f"    {name} -= 1", *indented(block(inner, 3))]


@compound(5)
def _try(scope: Scope) -> list[str]:
    lines = ["try:", *indented(block(scope.branch(), 3))]
    if scope.chance(0.4):
        error = scope.pick(["ValueError", "Trouble", "KeyError"])
        lines += [f"    if {boolean(scope, 1)}:", f"        raise {error}({string(scope, 0)})"]
    kind = scope.pick(
        ["(ValueError, KeyError)", "Exception", "Trouble", "LookupError", "Exception"]
    )
    handled = scope.chance(0.85)
    if handled:
        name = scope.draft.fresh("x")
        body = block(scope.branch(), 2)
        if scope.chance(0.3):
            body = [f"print(type({name}).__name__)", *body]
        if scope.chance(0.15):
            body.append(
                scope.pick(
                    ["raise", f"raise Trouble('again') from {name}", "raise Trouble('other')"]
                )
            )
        lines += [f"except {kind} as {name}:", *indented(body)]
    if handled and scope.chance(0.2):
        lines += ["else:", *indented(block(scope.branch(), 2))]
    if not handled or scope.chance(0.3):
        lines += ["finally:", *indented(block(scope.branch(in_loop=False), 2))]
    return lines


@compound(4)
def _with(scope: Scope) -> list[str]:
    boxes = scope.of("box")
    name = scope.draft.fresh("m")
    managers = [
        "torch.no_grad()",
        "torch.no_grad()",
        "torch.enable_grad()",
        f"torch.set_grad_enabled({boolean(scope, 1)})",
        "contextlib.nullcontext()",
        "contextlib.suppress(ValueError, Trouble)",
        "logged()",
        "Guarded()",
    ]
    if boxes:
        managers.append(f"{scope.pick(boxes).text} as {name}")
        managers.append(f"{scope.pick(boxes).text} as {name}, torch.no_grad()")
    inner = scope.branch()
    text = scope.pick(managers)
    if f"as {name}" in text:
        inner.add(Place(name, "box", written=False))
    return [f"with {text}:", *indented(block(inner, 3))]


@compound(3)
def _inner_function(scope: Scope) -> list[str]:
    name = scope.draft.fresh("f")
    inner = scope.branch(in_loop=False)
    inner.assigned = {}
    cells = [p for p in scope.places if p.owner == "local" and p.text.isidentifier()]
    inner.places = [p if p.owner != "local" else _as_cell(p) for p in inner.places]
    inner.add(Place("q", "tensor", (2, 3)))
    inner.add(Place("k", "int"))
    inner.result = Place("", "tensor", (2, 3))
    body = block(inner, 3)
    body.append(f"return {tensor_like(inner, (2, 3), 'f', 2)}")
    names = [n for n, owner in inner.assigned.items() if owner == "cell"]
    for text, owner in inner.assigned.items():
        if owner == "global":
            scope.assigned[text] = owner
    known = {p.text for p in cells} | {p.text for p in scope.places if p.owner == "cell"}
    head = [f"nonlocal {n}" for n in names if n in known]
    head += [f"global {n}" for n, owner in inner.assigned.items() if owner == "global"]
    scope.assigned.update(
        {n: o for n, o in inner.assigned.items() if n not in {c.text for c in cells}}
    )
    scope.add(Place(name, "function", (2, 3), "f", written=False))
    default = scope.pick(["1", integer(scope, 0)])
    kept = [f"LOG.append({name})"] if scope.chance(0.4) else []
    return [f"def {name}(q, k={default}):", *indented([*head, *body]), *kept]


def _as_cell(place: Place) -> Place:
    if not place.text.isidentifier() or place.owner != "local":
        return place
    owner = "cell" if place.kind != "function" else "local"
    return Place(
        place.text, place.kind, place.shape, place.dtype, owner, place.written, place.inplace
    )


@compound(1.5)
def _generator(scope: Scope) -> list[str]:
    name = scope.draft.fresh("g")
    place = scope.pick(scope.of("tensor")) if scope.of("tensor") else None
    value = place.text if place else "T(2, 3)"
    shape, dtype = (place.shape, place.dtype) if place else ((2, 3), "f")
    item = scope.draft.fresh("e")
    inner = scope.branch(in_loop=True)
    inner.add(Place(item, "tensor", shape, dtype, inplace=False, written=False))
    parameter = scope.draft.fresh("j")
    yielded = f"{value} + {parameter}" if dtype != "b" else value
    return [
        f"def {name}(n):",
        f"    for {parameter} in range(n):",
        f"        yield {yielded}",
        f"for {item} in {name}({small(scope)}):",
        *indented(block(inner, 2)),
    ]


@compound(1)
def _match(scope: Scope) -> list[str]:
    name = scope.draft.fresh("n")
    inner = scope.branch()
    inner.add(Place(name, "int"))
    subject = scope.pick(
        [f"({integer(scope, 1)}, {integer(scope, 1)})", f"[{integer(scope, 1)}, 2]"]
    )
    return [
        f"match {subject}:",
        "    case (0, _):",
        *indented(indented(block(scope.branch(), 2))),
        f"    case [{name}, 2] if {name} > 0:",
        *indented(indented(block(inner, 2))),
        "    case _:",
        *indented(indented(block(scope.branch(), 2))),
    ]
