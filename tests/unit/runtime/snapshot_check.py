"""Snapshots without PyTorch: run by each Python that is installed, with the built extension.

    python3.12 snapshot_check.py path/to/braze_guards.so

Dicts are watched from 3.12 on; before, their version is compared.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.machinery
import importlib.util
import sys
import types
from collections import OrderedDict

INSTANCE, DICT, SIZE, SEQUENCE, CELL = range(5)
LOCAL, STACK, GLOBALS = range(3)


def load(path):
    loader = importlib.machinery.ExtensionFileLoader("braze_guards", path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("braze_guards", loader)
    )
    loader.exec_module(module)
    return module


class Frame:
    def __init__(self, /, **values):
        self.locals, self.stack, self.globals = values, (), {}


class Thing:
    kind = "thing"

    def __init__(self):
        self.value = "one"
        self.inner = {"a": "x", "b": "y"}


class Other(Thing):
    pass


def snapshot(native, steps=(), roots=(), classes=(), functions=(), questions=(), keep=(), asked=()):
    """A snapshot without tensors."""
    asked = (questions, asked)
    return native.Snapshot(keep, 0, *asked, classes, functions, roots, steps, *[()] * 8, None)


def thing_snapshot(native, thing, frame):
    inner, space = thing.inner, thing.__dict__
    steps = (
        (INSTANCE, thing, Thing, space),
        (DICT, space, dict, (None, None, ("value", thing.value, "inner", inner))),
        (DICT, inner, dict, (2, ("a", "b"), ("a", inner["a"], "c", native.ABSENT))),
    )
    return snapshot(
        native, steps, ((LOCAL, "self", id(thing)),), keep=("value", "inner", "a", "b", "c", Thing)
    )


def holds(taken, frame):
    first, second = taken.check(frame), taken.check(frame)
    assert (first is None) == (second is None), "asking twice gives two answers"
    return first is not None


# Ways of changing a Thing, each of which breaks what `thing_snapshot` compares.
CHANGES = """
thing.inner["c"] = 1
thing.inner["a"] = "z"
del thing.inner["b"]
thing.inner.pop("a")
thing.inner.popitem()
thing.inner.clear()
thing.inner.update(a="z")
thing.inner.setdefault("c", 1)
thing.inner |= {"c": 1}
thing.inner["a"] = thing.inner.pop("a")
thing.inner.pop("a"), thing.inner.update({("k",): 1})
thing.inner = {"a": "x", "b": "z"}
thing.value = "two"
setattr(thing, "value", "two")
object.__setattr__(thing, "value", "two")
del thing.value
vars(thing)["value"] = "two"
vars(thing).update(value="two")
thing.__dict__ = dict(thing.__dict__, value="two")
thing.__dict__ = dict(thing.__dict__)
thing.__dict__.clear()
thing.__class__ = Other
""".strip().splitlines()


def check_dicts(native):
    """Every way of changing a dict is noticed."""
    for change in CHANGES:
        thing = Thing()
        frame = Frame(self=thing)
        taken = thing_snapshot(native, thing, frame)
        assert holds(taken, frame)
        exec(change)
        assert not holds(taken, frame), change


def check_forgiveness(native):
    """A dict that changed elsewhere, or changed back, counts as unchanged again."""
    thing = Thing()
    frame = Frame(self=thing)
    taken = thing_snapshot(native, thing, frame)
    for step in range(5):
        thing.counter = step
        assert holds(taken, frame)
    value = thing.value
    thing.value = "two"
    assert not holds(taken, frame)
    thing.value = value
    assert holds(taken, frame)
    thing.value = "two"
    assert not holds(taken, frame)


def check_hot_stores(native):
    """Stores that the interpreter has specialised are noticed too."""
    thing = Thing()
    frame = Frame(self=thing)
    value = thing.value
    taken = thing_snapshot(native, thing, frame)

    def store(new):
        thing.value = new

    for _ in range(200):
        store("two")
        assert not holds(taken, frame)
        store(value)
        assert holds(taken, frame)


def check_deaths(native):
    """Dicts that die and dicts that take their place; snapshots that share dicts and die."""
    for _ in range(50):
        thing = Thing()
        frame = Frame(self=thing)
        taken = thing_snapshot(native, thing, frame)
        again = thing_snapshot(native, thing, frame)
        assert holds(taken, frame) and holds(again, frame)
        del again
        assert holds(taken, frame)
        thing.inner = None
        gc.collect()
        thing.inner = {"a": "x", "b": "z", "c": "y"}
        assert not holds(taken, frame)
        del thing, frame.locals["self"]
        gc.collect()
        frame.locals["self"] = Thing()
        frame.locals["self"].value = "two"
        assert not holds(taken, frame)


class Odd:
    """What a lookup would run Python code for."""

    def __eq__(self, other):
        raise AssertionError("compared")

    def __hash__(self):
        return hash("a")


def check_keys(native):
    """Classes and the like are found as strings are; a dict with other keys is never known."""
    one, two, key = object(), object(), b"key"
    space = {Thing: one, key: two, None: one, Other: two, "a": one, check_keys: two, 3: one}
    entries = (Thing, one, key, two, None, one, "a", one, int, native.ABSENT)
    frame = Frame()
    steps = ((DICT, space, dict, (None, None, entries)),)
    taken = snapshot(native, steps, keep=(space, *entries))
    assert holds(taken, frame)
    for changed, value in ((Thing, two), (key, one), (None, two), ("a", two), (int, one)):
        before = dict(space)
        space[changed] = value
        assert not holds(taken, frame), changed
        space.clear()
        space.update(before)
        assert holds(taken, frame), changed
    odd = Odd()
    space.pop("a")
    space[odd] = one
    assert not holds(taken, frame)
    del space[odd]
    assert not holds(taken, frame)
    space["a"] = one
    assert holds(taken, frame)


def check_other_steps(native):
    cell = (lambda: cell).__closure__[0]
    listed, paired, ordered = ["i", "j"], ("i", "j"), OrderedDict()
    frame = Frame(many=listed)
    roots = ((LOCAL, "many", id(listed)),)
    cell_of = types.CellType("content")
    steps = (
        (SEQUENCE, listed, list, tuple(listed)),
        (SEQUENCE, paired, tuple, tuple(paired)),
        (SIZE, ordered, OrderedDict, 0),
        (CELL, cell_of, types.CellType, cell_of.cell_contents),
    )
    taken = snapshot(native, steps, roots, keep=(paired, ordered, cell_of, cell, "content"))
    assert holds(taken, frame)
    listed[0] = "k"
    assert not holds(taken, frame)
    listed[0] = "i"
    assert holds(taken, frame)
    listed.append("k")
    assert not holds(taken, frame)
    listed.pop()
    ordered["k"] = 1
    assert not holds(taken, frame)
    ordered.clear()
    assert holds(taken, frame)
    cell_of.cell_contents = "other"
    assert not holds(taken, frame)
    cell_of.cell_contents = "content"
    frame.locals["many"] = list(listed)
    assert not holds(taken, frame)
    del frame.locals["many"]
    assert not holds(taken, frame)


def check_classes_and_functions(native):
    asked = []

    def recheck(cls):
        asked.append(cls)
        return cls.kind == "thing"

    def function(x, y="default"):
        return x

    taken = snapshot(
        native,
        classes=((Other, recheck, "__dict__"),),
        functions=((function, function.__code__, function.__defaults__, None),),
        questions=((len, "abc", 3), (dict, None, None))[:1],
    )
    frame = Frame()
    assert holds(taken, frame) and holds(taken, frame)
    assert len(asked) == 1, "the version of an unchanged class is enough"
    Thing.kind = "else"
    assert not holds(taken, frame)
    Thing.kind = "thing"
    assert holds(taken, frame)
    Other.unread = 1
    assert holds(taken, frame)
    function.__defaults__ = ("other",)
    assert not holds(taken, frame)


def check_questions_of_c(native):
    """Each answer is compared in the bits of the mask; all three arguments arrive."""
    magnitude = ctypes.CDLL(None).labs
    address, frame = ctypes.cast(magnitude, ctypes.c_void_p).value, Frame()
    for argument, mask, answer, expected in (
        (-3, -1, 3, True),
        (-3, -1, 4, False),
        (-0x203, 0xFF, 3, True),
        (-0x203, -1, 3, False),
        (-0x203, -1, 0x203, True),
    ):
        row = (address, argument, 0, 0, mask, answer)
        assert holds(snapshot(native, asked=(row,)), frame) is expected, row
        assert not holds(snapshot(native, asked=(row, (address, 1, 0, 0, -1, 2))), frame)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)
    digits = kind(lambda first, second, third: first * 100 + second * 10 + third)
    place = ctypes.cast(digits, ctypes.c_void_p).value
    for answer in (123, 132):
        row = (place, 1, 2, 3, -1, answer)
        assert holds(snapshot(native, asked=(row,)), frame) is (answer == 123), row


def check_references(native):
    """Nothing leaks, nothing is freed twice, cycles are collected."""
    thing = Thing()
    before = sys.getrefcount(thing), sys.getrefcount(thing.inner), sys.getrefcount(thing.value)
    frame = Frame(self=thing)
    for _ in range(100):
        taken = thing_snapshot(native, thing, frame)
        for _ in range(3):
            assert holds(taken, frame)
    del taken
    after = sys.getrefcount(thing) - 1, sys.getrefcount(thing.inner), sys.getrefcount(thing.value)
    assert before == after, (before, after)
    cycle = []
    cycle.append(snapshot(native, keep=(cycle,)))
    count = sum(type(o) is native.Snapshot for o in gc.get_objects())
    del cycle
    gc.collect()
    assert sum(type(o) is native.Snapshot for o in gc.get_objects()) == count - 1


def main():
    native = load(sys.argv[1])
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(native)
    print("ok")


if __name__ == "__main__":
    main()
