"""Repeats in a list of operations."""

from __future__ import annotations

from braze.ir.repeats import Operation, chains_of, find_repeats


def _layers(count: int, keys: str = "ab") -> list[Operation]:
    """x = first(); then `count` layers of a: (x, w) -> y and b: (y, x) -> x."""
    found = [Operation("first", (), ("x0",))]
    for n in range(count):
        found.append(Operation(keys[0], (f"x{n}", f"w{n}", "mask"), (f"y{n}",)))
        found.append(Operation(keys[1], (f"y{n}", f"x{n}"), (f"x{n + 1}",)))
    return [*found, Operation("last", (f"x{count}",), ("z",))]


def _any(one: object, other: object) -> bool:
    return True


def _interned(operations: list[Operation]) -> list[Operation]:
    """One object a name: operands are compared by identity."""
    names: dict[object, object] = {}

    def one(given: tuple[object, ...]) -> tuple[object, ...]:
        return tuple([names.setdefault(name, name) for name in given])

    return [Operation(o.key, one(o.operands), one(o.results)) for o in operations]  # type: ignore[arg-type]


def test_layers_are_found_with_their_weights() -> None:
    found = find_repeats(_interned(_layers(6)), 4, _any)
    assert found is not None and found.length == 2 and found.periods >= 5
    (chain,) = chains_of(found.next)
    assert chain == [f"w{n}" for n in range(6)]


def test_a_layer_of_another_kind_ends_them() -> None:
    one, other = _layers(6), _layers(6)
    middle = Operation("other", ("x2", "w2"), ("y2",))
    other[5] = middle
    assert find_repeats(_interned(one), 4, _any) is not None
    assert find_repeats(_interned(other), 5, _any) is None


def test_weights_that_do_not_go_on_end_them() -> None:
    """The fourth layer has the second one's weight again: no input stands for both."""
    tied = _layers(6)
    tied[7] = Operation("a", ("x3", "w1", "mask"), ("y3",))
    assert find_repeats(_interned(tied), 5, _any) is None


def _reading(layers: list[Operation], also: str) -> list[Operation]:
    """The layers, of which each operation `a` reads something else, too."""
    return [Operation(o.key, (*o.operands, also), o.results) if o.key == "a" else o for o in layers]


def test_weights_that_all_layers_share_are_no_chain() -> None:
    shared = _interned(_reading(_layers(6), "shared"))
    found = find_repeats(shared, 4, _any)
    assert found is not None and "shared" not in found.next


def test_what_all_layers_read_is_made_before_them() -> None:
    found = find_repeats(_interned(_reading(_layers(8), "y1")), 4, _any)
    assert found is not None and found.start > 3  # where y1 is made
