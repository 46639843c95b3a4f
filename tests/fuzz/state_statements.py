"""Statements that change containers and objects."""

from __future__ import annotations

from tests.fuzz.scalars import boolean, integer, small
from tests.fuzz.scope import Place, Scope
from tests.fuzz.statements import simple
from tests.fuzz.tensor_expressions import tensor, tensor_like

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
    forms = [
        "{0}.append({1})",
        "{0}.insert(0, {1})",
        "{0}.extend([{1}, {1}])",
        "{0}[0] = {1}",
        "{0}.pop()",
        "{0}.reverse()",
        "del {0}[0]",
        "{0}[-1] = {1}",
        "{0} += [{1}]",
        "{0}[1:] = [{1}]",
        "{0}[:0] = [{1}]",
        "{0}.append({0}[0])",
    ]
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
    forms = [
        "{0}[{1}] = {2}",
        "{0}.setdefault({1}, {2})",
        "{0}.update({{{1}: {2}}})",
        "del {0}[{1}]",
        "{0}.pop({1}, None)",
        "{0}[{1}] = {0}.get({1}, 0) + {2}",
        "{0}.update(z={2})",
        "{0}[{1}] = {2}",
        "{0}[{1}] += 1",
        "{0}.popitem()",
        "{0}[{1}] = {0}.pop({1})",
    ]
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
        "tensors": [
            f"[{first.text}]",
            f"[{first.text} for _ in range(2)]",
            f"[{first.text}, {first.text}.clone()]",
        ],
        "table": [
            f"{{'a': {first.text}}}",
            f"dict(a={first.text}, b={first.text})",
            f"collections.OrderedDict(a={first.text})",
        ],
        "ints": [
            f"[q * 2 for q in range({small(scope)})]",
            f"[1, {integer(scope, 1)}]",
            f"list(range({small(scope)}))",
        ],
        "counts": [
            f"{{'u': {integer(scope, 1)}}}",
            f"dict(zip('uvw', [1, {integer(scope, 1)}]))",
            "collections.Counter('uuv')",
            "collections.defaultdict(int, u=1)",
        ],
        "set": [f"{{1, {integer(scope, 1)}}}", "set()", f"set(range({small(scope)}))"],
    }
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
    forms = [
        f"{box}.t = {value}",
        f"{box}.k += {integer(scope, 1)}",
        f"{box}.extra = {integer(scope, 1)}",
        f"setattr({box}, 'k', {integer(scope, 1)})",
        f"{box}.step({value})",
        f"{box}.twice = {integer(scope, 1)}",
        f"del {box}.extra",
        f"{box}.items.append({value})",
        f"type({box}).level += 1",
        f"{box}.bump()",
        f"vars({box})['k'] = {integer(scope, 1)}",
        f"{box}[0] = {value}",
        f"{box}.child = Box0({integer(scope, 1)}, {value})",
        f"{box}.name += 'x'",
        f"{box}.t.add_(1)",
        f"{box}.__dict__.update(extra={integer(scope, 1)})",
        f"{box} += 1",
    ]
    return [scope.pick(forms[:-1])]


@simple(2)
def _net_write(scope: Scope) -> list[str] | None:
    places = scope.of("net")
    if not places:
        return None
    net = scope.pick(places).text
    forms = [
        f"{net}.train({boolean(scope, 0)})",
        f"{net}.calls += 1",
        f"{net}.buf = {net}.buf + 1",
        f"{net}.buf.add_(1)",
        f"{net}({tensor_like(scope, (2, 3), 'f', 1)})",
        f"{net}.register_buffer('extra', {tensor_like(scope, (3,), 'f', 1)})",
        f"{net}.buf = {tensor_like(scope, (3,), 'f', 1)}",
        f"{net}.eval()",
        f"{net}.note = {integer(scope, 1)}",
        f"{net}.lin.weight.requires_grad_({boolean(scope, 0)})",
        f"{net}.zero_grad()",
    ]
    return [scope.pick(forms)]


@simple(1.5)
def _new_object(scope: Scope) -> list[str] | None:
    if not scope.draft.boxes:
        return None
    name = scope.draft.fresh("b")
    value = tensor_like(scope, (2, 3), "f", 1)
    text = f"{scope.pick(scope.draft.boxes)}({integer(scope, 1)}, {value})"
    scope.add(Place(name, "box"))
    return [f"{name} = {text}"]
