"""Statements: lines of text, and what they make visible."""

from __future__ import annotations

from tests.fuzz.scalars import boolean, integer, number, small, string
from tests.fuzz.scope import Place, Rules, Scope
from tests.fuzz.tensor_expressions import Written, broadcast, place_of, tensor, tensor_like

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
    forms = ["add_({})", "mul_({})", "sub_({})", "fill_({})", "add_(1).mul_({})", "zero_()"]
    if place.dtype in "fd":
        forms += ["relu_()", "clamp_(-1, 1)", "neg_()", "sin_()", "normal_()", "uniform_()"]
    return [f"{target}.{scope.pick(forms).format(value)}"]


def _part(scope: Scope, place: Place) -> str:
    if len(place.shape) == 2:
        return scope.pick(["[0]", "[:, 0]", ".t()", "[1:]", "[..., -1]", ".reshape(-1)", ".detach()",
                           ".view(-1)", ".diagonal()", ".data"])  # fmt: skip
    return (
        scope.pick([".view(1, -1)", "[1:]", ".detach()", ".data"]) if place.shape else ".detach()"
    )


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
        value = _broadcast_onto(scope, place)
    return [f"{place.text}[{index}] = {value}"]


@simple(3)
def _copy_or_add(scope: Scope) -> list[str] | None:
    place = _writable(scope)
    if place is None or place.dtype == "i":
        return None
    form = scope.pick(
        [
            "{}.copy_({})",
            "{}.add_({}, alpha=2)",
            "{0}.addcmul_({0}, {1})",
            "torch.add({0}, {1}, out={0})",
        ]
    )
    return [form.format(place.text, _broadcast_onto(scope, place))]


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


# --- containers --------------------------------------------------------------------------------


@simple(5)
def _list_call(scope: Scope) -> list[str] | None:
    places = scope.of("tensors", "ints")
    if not places:
        return None
    place = scope.pick(places)
    if place.kind == "ints":
        item = integer(scope, 1)
    else:
        item = tensor_like(scope, place.shape, place.dtype, 1)
    forms = ["{0}.append({1})", "{0}.insert(0, {1})", "{0}.extend([{1}, {1}])", "{0}[0] = {1}",
             "{0}.pop()", "{0}.reverse()", "del {0}[0]", "{0}[-1] = {1}", "{0} += [{1}]",
             "{0}[1:] = [{1}]", "{0}[:0] = [{1}]", "{0}.append({0}[0])"]  # fmt: skip
    if place.kind == "ints":
        forms += ["{0}.sort()", "{0}.sort(key=lambda q: -q)", "{0}[:] = sorted({0})", "{0}[0] += 1"]
    else:
        forms += ["{0}[0] = {0}[0] + 1", "{0}[0] += 1", "{0}.clear()", "{0}.append({1})"]
    form = scope.pick(forms)
    if " += [" in form:
        if not place.written:
            return None
        scope.note_assignment(place)
    return [form.format(place.text, item)]


@simple(5)
def _dict_call(scope: Scope) -> list[str] | None:
    places = scope.of("table", "counts")
    if not places:
        return None
    place = scope.pick(places)
    keys = ["'a'", "'b'", "'c'"] if place.kind == "table" else ["'u'", "'v'", "'w'"]
    key = scope.pick(keys)
    if place.kind == "table":
        item = tensor_like(scope, place.shape, place.dtype, 1)
    else:
        item = integer(scope, 1)
    forms = ["{0}[{1}] = {2}", "{0}.setdefault({1}, {2})", "{0}.update({{{1}: {2}}})", "del {0}[{1}]",
             "{0}.pop({1}, None)", "{0}[{1}] = {0}.get({1}, 0) + {2}", "{0}.update(z={2})",
             "{0}[{1}] = {2}", "{0}[{1}] += 1", "{0}.popitem()",
             "{0}[{1}] = {0}.pop({1})"]  # fmt: skip
    if place.kind == "counts":
        forms += ["{0}[{2}] = 1", "{0}.clear()"]
    return [scope.pick(forms).format(place.text, key, item)]


@simple(2)
def _set_call(scope: Scope) -> list[str] | None:
    places = scope.of("set")
    if not places:
        return None
    forms = [
        "{0}.add({1})",
        "{0}.discard({1})",
        "{0}.update([{1}, 7])",
        "{0} |= {{{1}}}",
        "{0}.remove({1})",
    ]
    place = scope.pick(places)
    form = scope.pick(forms)
    if "|=" in form:
        if not place.written:
            return None
        scope.note_assignment(place)
    return [form.format(place.text, integer(scope, 1))]


@simple(1.5)
def _new_container(scope: Scope) -> list[str]:
    name = scope.draft.fresh("c")
    first = tensor(scope, 1)
    forms = {
        "tensors": [f"[{first.text}]", f"[{first.text} for _ in range(2)]", f"[{first.text}, {first.text}.clone()]"],
        "table": [f"{{'a': {first.text}}}", f"dict(a={first.text}, b={first.text})", f"collections.OrderedDict(a={first.text})"],
        "ints": [f"[q * 2 for q in range({small(scope)})]", f"[1, {integer(scope, 1)}]", f"list(range({small(scope)}))"],
        "counts": [f"{{'u': {integer(scope, 1)}}}", f"dict(zip('uvw', [1, {integer(scope, 1)}]))", "collections.Counter('uuv')", "collections.defaultdict(int, u=1)"],
        "set": [f"{{1, {integer(scope, 1)}}}", "set()", f"set(range({small(scope)}))"],
    }  # fmt: skip
    kind = scope.pick(list(forms))
    text = scope.pick(forms[kind])
    scope.add(Place(name, kind, first.shape, first.dtype))
    return [f"{name} = {text}"]


# --- objects -----------------------------------------------------------------------------------


@simple(4)
def _object_write(scope: Scope) -> list[str] | None:
    places = scope.of("box")
    if not places:
        return None
    box = scope.pick(places).text
    value = tensor_like(scope, (2, 3), "f", 1)
    forms = [f"{box}.t = {value}", f"{box}.k += {integer(scope, 1)}", f"{box}.extra = {integer(scope, 1)}",
             f"setattr({box}, 'k', {integer(scope, 1)})", f"{box}.step({value})", f"{box}.twice = {integer(scope, 1)}",
             f"del {box}.extra", f"{box}.items.append({value})", f"type({box}).level += 1",
             f"{box}.bump()", f"vars({box})['k'] = {integer(scope, 1)}", f"{box}[0] = {value}",
             f"{box}.child = Box0({integer(scope, 1)}, {value})", f"{box}.name += 'x'", f"{box}.t.add_(1)",
             f"{box}.__dict__.update(extra={integer(scope, 1)})", f"{box} += 1"]  # fmt: skip
    return [scope.pick(forms[:-1])]


@simple(2)
def _net_write(scope: Scope) -> list[str] | None:
    places = scope.of("net")
    if not places:
        return None
    net = scope.pick(places).text
    forms = [f"{net}.train({boolean(scope, 0)})", f"{net}.calls += 1", f"{net}.buf = {net}.buf + 1", f"{net}.buf.add_(1)",
             f"{net}({tensor_like(scope, (2, 3), 'f', 1)})", f"{net}.register_buffer('extra', {tensor_like(scope, (3,), 'f', 1)})",
             f"{net}.buf = {tensor_like(scope, (3,), 'f', 1)}", f"{net}.eval()", f"{net}.note = {integer(scope, 1)}",
             f"{net}.lin.weight.requires_grad_({boolean(scope, 0)})", f"{net}.zero_grad()"]  # fmt: skip
    return [scope.pick(forms)]


@simple(1.5)
def _new_object(scope: Scope) -> list[str] | None:
    if not scope.draft.boxes:
        return None
    name = scope.draft.fresh("b")
    text = f"{scope.pick(scope.draft.boxes)}({integer(scope, 1)}, {tensor_like(scope, (2, 3), 'f', 1)})"
    scope.add(Place(name, "box"))
    return [f"{name} = {text}"]


# --- control and effects -----------------------------------------------------------------------


@simple(1.5)
def _print(scope: Scope) -> list[str]:
    return [f"print({string(scope, 1)}, {integer(scope, 1)})"]


@simple(0.5)
def _seed(scope: Scope) -> list[str]:
    return [scope.pick(["torch.manual_seed(3)", "random.seed(3)", "braze.graph_break()", "torch.set_grad_enabled(True)",
                        "random.random()", "torch.rand(2)", "torch.set_grad_enabled(False)"])]  # fmt: skip


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
        lines += [
            f"    if {boolean(scope, 1)}:",
            f"        raise {scope.pick(['ValueError', 'Trouble', 'KeyError'])}({string(scope, 0)})",
        ]
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
    managers = ["torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", f"torch.set_grad_enabled({boolean(scope, 1)})",
                "contextlib.nullcontext()", "contextlib.suppress(ValueError, Trouble)", "logged()", "Guarded()"]  # fmt: skip
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
    return [f"def {name}(q, k={default}):", *indented([*head, *body])]


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


def returned(scope: Scope, written: Written | None = None) -> str:
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
