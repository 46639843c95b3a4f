"""Expressions of Python numbers, booleans and strings."""

from __future__ import annotations

from tests.fuzz.scope import Rules, Scope

integers, numbers, booleans, strings = Rules(), Rules(), Rules(), Rules()
_WORDS = ("'u'", "'v'", "'mean'", "''")


def integer(scope: Scope, depth: int = 2) -> str:
    """An int, atomic or in parentheses."""
    return integers.write(scope, depth) if depth > 0 else _int_leaf(scope)


def number(scope: Scope, depth: int = 2) -> str:
    """A float."""
    return numbers.write(scope, depth) if depth > 0 else _float_leaf(scope)


def boolean(scope: Scope, depth: int = 2) -> str:
    """A bool."""
    return booleans.write(scope, depth) if depth > 0 else _bool_leaf(scope)


def string(scope: Scope, depth: int = 2) -> str:
    """A str."""
    return strings.write(scope, depth) if depth > 0 else _str_leaf(scope)


def small(scope: Scope) -> str:
    """An int from 0 to 3, for loops and sizes."""
    return f"({integer(scope, 1)}) % {scope.pick([2, 3, 4])}"


def _leaf(scope: Scope, kind: str, literals: tuple[str, ...]) -> str:
    places = scope.of(kind)
    if places and scope.chance(0.75):
        return scope.pick(places).text
    return scope.pick(literals)


# --- int ---------------------------------------------------------------------------------------


@integers(6)
def _int_leaf(scope: Scope, depth: int = 0) -> str:
    return _leaf(scope, "int", ("0", "1", "2", "3", "-1", "5"))


@integers(3)
def _arithmetic(scope: Scope, depth: int) -> str:
    op = scope.pick(["+", "-", "+", "% 7 +", "// 2 +", "^", "&", "|"])
    return f"({integer(scope, depth - 1)} {op} {integer(scope, depth - 1)})"


@integers(3)
def _of_tensor(scope: Scope, depth: int) -> str | None:
    places = scope.of("tensor")
    if not places:
        return None
    place = scope.pick(places)
    forms = [
        "dim()",
        "numel()",
        "ndim",
        "size(-1)",
        "shape[0]",
        "stride(-1)",
        "storage_offset()",
        "element_size()",
    ]
    form = scope.pick(forms)
    if not place.shape and form in ("size(-1)", "shape[0]", "stride(-1)"):
        form = "dim()"
    return f"{place.text}.{form}"


@integers(2)
def _length(scope: Scope, depth: int) -> str | None:
    places = scope.of("tensors", "ints", "table", "counts", "set", "str")
    return f"len({scope.pick(places).text})" if places else None


@integers(2)
def _of_container(scope: Scope, depth: int) -> str | None:
    places = scope.of("ints", "counts", "set")
    if not places:
        return None
    place = scope.pick(places)
    forms = {
        "ints": [
            "sum({})",
            "{}[0]",
            "{}[-1]",
            "max({})",
            "{}.count(1)",
            "min({}, default=0)",
            "sum(q for q in {} if q > 1)",
            "sorted({})[0]",
            "len({}[1:])",
        ],
        "counts": [
            "{}.get('u', 4)",
            "sum({}.values())",
            "{}['u']",
            "{}.get('w', 0)",
            "len(list({}.items()))",
        ],
        "set": ["sum({})", "len({} | {{1, 9}})", "max({}, default=0)", "min({}, default=2)"],
    }[place.kind]
    return scope.pick(forms).format(place.text)


@integers(1)
def _rounded(scope: Scope, depth: int) -> str:
    form = scope.pick(["int({})", "round({})", "math.floor({})"])
    return form.format(number(scope, depth - 1))


@integers(1)
def _extreme(scope: Scope, depth: int) -> str:
    name = scope.pick(["max", "min"])
    return f"{name}({integer(scope, depth - 1)}, {integer(scope, depth - 1)})"


@integers(1)
def _truth(scope: Scope, depth: int) -> str:
    return f"int({boolean(scope, depth - 1)})"


@integers(0.4)
def _int_item(scope: Scope, depth: int) -> str | None:
    places = [p for p in scope.of("tensor") if p.dtype != "b"]
    if not places:
        return None
    form = scope.pick(["int({}.sum())", "{}.argmax().item()", "int(({} > 0).sum())"])
    return form.format(scope.pick(places).text)


@integers(1)
def _attribute(scope: Scope, depth: int) -> str | None:
    boxes, nets = scope.of("box"), scope.of("net")
    if boxes and scope.chance(0.7):
        form = scope.pick(
            [
                "{}.twice",
                "getattr({}, 'extra', 2)",
                "{}.k",
                "len({})",
                "{}.level",
                "type({}).level",
                "{}.weigh(3)",
                "{}[1]",
            ]
        )
        return form.format(scope.pick(boxes).text)
    if nets:
        return scope.pick(["{}.calls", "len(list({}.parameters()))"]).format(scope.pick(nets).text)
    return None


# --- float -------------------------------------------------------------------------------------


@numbers(5)
def _float_leaf(scope: Scope, depth: int = 0) -> str:
    return _leaf(scope, "float", ("0.5", "2.0", "-1.25", "0.0", "1.5"))


@numbers(2)
def _float_arithmetic(scope: Scope, depth: int) -> str:
    op = scope.pick(["+", "-", "*"])
    right = number(scope, depth - 1) if scope.chance(0.5) else integer(scope, depth - 1)
    return f"({number(scope, depth - 1)} {op} {right})"


@numbers(1.5)
def _halved(scope: Scope, depth: int) -> str:
    divisor = scope.pick(["2", "4", f"(1 + abs({integer(scope, 0)}))"])
    return f"({integer(scope, depth - 1)} / {divisor})"


@numbers(1)
def _float_function(scope: Scope, depth: int) -> str:
    form = scope.pick(
        ["float({})", "math.sqrt(abs({}))", "math.tanh({})", "abs({})", "min({}, 1.0)"]
    )
    return form.format(number(scope, depth - 1) if scope.chance(0.6) else integer(scope, depth - 1))


@numbers(0.4)
def _partial_function(scope: Scope, depth: int) -> str:
    """A function that Python raises from, for some numbers."""
    form = scope.pick(["math.sqrt({})", "math.log({})", "math.exp({})", "1.5 / {}", "{} ** -2"])
    return form.format(f"({number(scope, depth - 1)})")


@numbers(0.4)
def _float_item(scope: Scope, depth: int) -> str | None:
    places = [p for p in scope.of("tensor") if p.dtype in "fd"]
    if not places:
        return None
    form = scope.pick(["float({}.sum())", "{}.mean().item()", "{}.flatten()[0].item()"])
    return form.format(scope.pick(places).text)


@numbers(0.3)
def _random_number(scope: Scope, depth: int) -> str:
    return scope.pick(["random.random()", "float(random.randint(0, 3))"])


# --- bool --------------------------------------------------------------------------------------


@booleans(3)
def _bool_leaf(scope: Scope, depth: int = 0) -> str:
    return _leaf(scope, "bool", ("True", "False"))


@booleans(5)
def _comparison(scope: Scope, depth: int) -> str:
    op = scope.pick(["<", ">", "<=", "==", "!=", ">="])
    if scope.chance(0.25):
        return f"({number(scope, depth - 1)} {op} {number(scope, depth - 1)})"
    if scope.chance(0.1):
        return f"({integer(scope, 0)} {op} {integer(scope, 0)} < {integer(scope, 0)})"
    return f"({integer(scope, depth - 1)} {op} {integer(scope, depth - 1)})"


@booleans(2)
def _connected(scope: Scope, depth: int) -> str:
    if scope.chance(0.3):
        return f"(not {boolean(scope, depth - 1)})"
    op = scope.pick(["and", "or"])
    return f"({boolean(scope, depth - 1)} {op} {boolean(scope, depth - 1)})"


@booleans(2.5)
def _tensor_fact(scope: Scope, depth: int) -> str | None:
    places = scope.of("tensor")
    if not places:
        return None
    place, other = scope.pick(places), scope.pick(places)
    forms = [
        "{0}.requires_grad",
        "{0}.is_contiguous()",
        "({0} is {1})",
        "({0}.shape == {1}.shape)",
        "({0}.dtype == torch.float32)",
        "isinstance({0}, torch.Tensor)",
        "{0}.is_leaf",
        "({0}.grad is None)",
        "({0}.grad_fn is None)",
        "isinstance({0}, nn.Parameter)",
        "{0}.is_floating_point()",
        "({0} is not {1})",
        "(type({0}) is torch.Tensor)",
        "torch.is_grad_enabled()",
        "torch.is_tensor({0})",
        "(torch.get_default_dtype() == torch.float32)",
    ]
    return scope.pick(forms).format(place.text, other.text)


@booleans(1)
def _data_dependent(scope: Scope, depth: int) -> str | None:
    places = [p for p in scope.of("tensor") if p.dtype in "fd"]
    if not places:
        return None
    form = scope.pick(["bool(({} > 0).any())", "({}.sum() > 0)", "({}.mean() < 0.5).item()"])
    return form.format(scope.pick(places).text)


@booleans(2)
def _contained(scope: Scope, depth: int) -> str | None:
    places = scope.of("table", "counts", "set", "ints", "str")
    if not places:
        return None
    place = scope.pick(places)
    keys = {"table": ("'a'", "'c'"), "counts": ("'u'", "'w'"), "str": ("'u'", "'mean'")}
    key = scope.pick(keys[place.kind]) if place.kind in keys else integer(scope, 0)
    op = scope.pick(["in", "not in"])
    return f"({key} {op} {place.text})"


@booleans(1.5)
def _object_fact(scope: Scope, depth: int) -> str | None:
    boxes, nets = scope.of("box"), scope.of("net")
    if boxes and scope.chance(0.7):
        forms = [
            "hasattr({0}, 'extra')",
            "({0} is {1})",
            "bool({0})",
            "({0}.child is None)",
            "isinstance({0}, Base)",
            "({0} == {1})",
            "('k' in vars({0}))",
            "callable({0})",
        ]
        return scope.pick(forms).format(scope.pick(boxes).text, scope.pick(boxes).text)
    return f"{scope.pick(nets).text}.training" if nets else None


@booleans(1)
def _string_fact(scope: Scope, depth: int) -> str:
    form = scope.pick(["({} == 'u')", "{}.startswith('m')", "bool({})", "({} < 'n')"])
    return form.format(string(scope, depth - 1))


@booleans(1)
def _emptiness(scope: Scope, depth: int) -> str | None:
    places = scope.of("tensors", "ints", "table", "counts", "set")
    if not places:
        return None
    form = scope.pick(["bool({})", "any(q > 1 for q in range(len({})))", "(not {})"])
    return form.format(scope.pick(places).text)


# --- str ---------------------------------------------------------------------------------------


@strings(4)
def _str_leaf(scope: Scope, depth: int = 0) -> str:
    return _leaf(scope, "str", _WORDS)


@strings(2)
def _formatted(scope: Scope, depth: int) -> str:
    form = scope.pick(['f"{{{}}}"', 'f"<{{{}!r:>4}}>"', "str({})", "('%d' % {})"])
    return form.format(integer(scope, 0))


@strings(1)
def _string_method(scope: Scope, depth: int) -> str:
    form = scope.pick(
        ["{}.upper()", "({} + 'x')", "'-'.join([{}, 'z'])", "{}[:2]", "{}.replace('u', 'w')"]
    )
    return form.format(string(scope, depth - 1))


@strings(1)
def _described(scope: Scope, depth: int) -> str | None:
    places = scope.of("tensor")
    if not places:
        return None
    form = scope.pick(["str({}.dtype)", "str(tuple({}.shape))", "type({}).__name__"])
    return form.format(scope.pick(places).text)
