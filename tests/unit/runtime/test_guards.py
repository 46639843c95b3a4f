"""Guards as code: what holds, what fails, and in which words."""

from __future__ import annotations

import functools
import math
import types
from collections import OrderedDict, defaultdict
from numbers import Number
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.compat.numpy.interface import array_facts
from braze.compat.python.lru_caches import CachedResult, Uncached
from braze.compat.python.stdlib import SameThread
from braze.compat.torch.ambient_state import ambient_state
from braze.compat.torch.tensor_abi import dispatch_keys
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import ABSENT, Guard, GuardKind, SizeCondition, TensorFacts
from braze.ir.captured.guard_tree import build_guard_tree, order_guards
from braze.ir.captured.source import (
    AttributeSource,
    CellObjectSource,
    CellSource,
    ClosureSource,
    DictKeySource,
    FunctionGlobalSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ObjectSource,
    PeekSource,
    SizeSource,
    Source,
    StackSource,
    StrideSource,
    TypeSource,
)
from braze.runtime.guards.codegen import READ_FAILURES, read_source
from braze.runtime.guards.compile import (
    compile_entry_check,
    compile_guards,
)
from braze.runtime.guards.evaluate import explain_failure
from braze.runtime.guards.kinds import GUARD_KINDS
from braze.shapes.expr import Symbol, as_expr

X = LocalSource("x")
Y = LocalSource("y")


def frame(**values: Any) -> FrameValues:
    return FrameValues(values, (), {"__builtins__": __builtins__})


def facts(tensor: torch.Tensor, **changes: Any) -> TensorFacts:
    known: dict[str, Any] = {
        "tensor_class": type(tensor),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "requires_grad": tensor.requires_grad,
        "shape": tuple(tensor.shape),
        "stride": tuple(tensor.stride()) if tensor.layout is torch.strided else (),
        "layout": tensor.layout,
        "keys": dispatch_keys(tensor),
    }
    return TensorFacts(**{**known, **changes})


def outcome(guard: Guard, **values: Any) -> str:
    """The failure's words, "" where the guard holds; code and words must agree."""
    here = frame(**values)
    text = explain_failure(build_guard_tree([guard]), here)
    assert compile_guards([guard])(here) is (text == "")
    return text


def match(tensor: torch.Tensor, **changes: Any) -> Guard:
    return Guard(X, GuardKind.TENSOR_MATCH, facts(tensor, **changes))


def equals(value: Any) -> Guard:
    return Guard(X, GuardKind.EQUALS_MATCH, value)


# --- tensors -------------------------------------------------------------------------------------


def test_tensor_size_message() -> None:
    guard = match(torch.empty(3, 2))
    assert outcome(guard, x=torch.empty(3, 2)) == ""
    assert (
        outcome(guard, x=torch.empty(4, 2))
        == "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"
    )


@pytest.mark.parametrize(
    "other, message",
    [
        (
            torch.empty(3, 2, dtype=torch.float64),
            "dtype mismatch. expected torch.float32, actual torch.float64",
        ),
        (torch.empty(2, 3).t(), "stride mismatch at index 0. expected 2, actual 1"),
        (torch.empty(3), "rank mismatch. expected 2, actual 1"),
        (torch.empty(3, 2, device="meta"), "device mismatch. expected cpu, actual meta"),
        (
            torch.empty(3, 2, requires_grad=True),
            "requires_grad mismatch. expected False, actual True",
        ),
        (
            torch.nn.Parameter(torch.empty(3, 2), False),
            "type mismatch. expected "
            "<class 'torch.Tensor'>, actual <class 'torch.nn.parameter.Parameter'>",
        ),
        (
            torch.empty(3, 2).to_sparse(),
            "layout mismatch. expected torch.strided, actual torch.sparse_coo",
        ),
        (3, "type mismatch. expected <class 'torch.Tensor'>, actual <class 'int'>"),
    ],
)
def test_tensor_messages(other: Any, message: str) -> None:
    assert outcome(match(torch.empty(3, 2)), x=other) == f"tensor 'L['x']' {message}"


def test_flags_are_dispatch_keys() -> None:
    complex_numbers = torch.zeros(3, 2, dtype=torch.complex64)
    words = outcome(match(complex_numbers), x=complex_numbers.conj())
    assert "dispatch key set mismatch" in words and "Conjugate" in words
    with torch.inference_mode():
        inference = torch.empty(3, 2)
    assert "ADInplaceOrView" in outcome(match(torch.empty(3, 2)), x=inference)


def test_tensor_with_dimensions_that_match_any_size() -> None:
    guard = match(torch.empty(3, 2), shape=(None, 2), stride=(None, 1))
    assert outcome(guard, x=torch.empty(9, 2)) == ""
    assert "size mismatch at index 1" in outcome(guard, x=torch.empty(9, 3))
    assert "rank mismatch" in outcome(guard, x=torch.empty(9))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (1, 3), (3, 1), (2, 0, 3), (2, 3, 4)])
def test_stride_of_contiguous_tensors(shape: tuple[int, ...]) -> None:
    tensor = torch.empty(shape)
    assert outcome(match(tensor), x=torch.empty(shape)) == ""
    if len(shape) > 1 and tensor.numel():
        odd = torch.empty_strided(shape, tuple(stride + 7 for stride in tensor.stride()))
        assert "stride mismatch" in outcome(match(tensor), x=odd)


def test_leaf_is_compared_where_asked() -> None:
    leaf = torch.ones(2, requires_grad=True)
    guard = match(leaf, is_leaf=True)
    assert outcome(guard, x=leaf) == ""
    assert "is_leaf mismatch" in outcome(guard, x=leaf * 2)


def test_sparse_tensor_has_no_stride() -> None:
    sparse = torch.eye(2).to_sparse()
    assert outcome(match(sparse), x=torch.eye(2).to_sparse()) == ""
    assert "layout" in outcome(match(sparse), x=torch.eye(2))


# --- constants -----------------------------------------------------------------------------------

CONSTANTS = [
    1, 1.0, True, 0, 0.0, -0.0, False, None, "a", b"a", math.nan, math.inf, -math.inf, 1j,
    complex(0.0, -0.0), complex(0.0, 0.0), (1,), (1.0,), (True,), (0.0,), (-0.0,), [1], {"a": 1},
    {"a": 1.0}, frozenset({1}), frozenset({1.0}), frozenset({True}), slice(1, None), ...,
    slice(1.0, None),
    torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), torch.Size([1]), 2**70,
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(CONSTANTS)))
def test_equals_tells_all_constants_apart(index: int) -> None:
    guard = equals(CONSTANTS[index])
    for other, value in enumerate(CONSTANTS):
        assert (outcome(guard, x=value) == "") is (other == index), (CONSTANTS[index], value)


def test_equals_message() -> None:
    assert outcome(equals(3), x=4) == "'L['x']' value mismatch. expected 3, actual 4"
    assert "type mismatch" in outcome(equals(3), x=3.0)


def test_equals_makes_an_equal_object_do() -> None:
    assert outcome(equals("ab" * 20), x="ab" * 10 + "ab" * 10) == ""
    assert outcome(equals(math.nan), x=float("nan")) == ""


# --- the other kinds -----------------------------------------------------------------------------


class Odd(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise AssertionError("user code in a guard")

    __getitem__ = __contains__ = __iter__ = keys = get = __len__  # type: ignore[assignment]


class Thing:
    here = 1


def other_function(a: int = 1) -> None: ...


MODULE = torch.nn.Linear(1, 1)
HOOKED = torch.nn.Linear(1, 1)
HOOKED.register_forward_hook(lambda *_: None)
BASE = torch.empty(4)
ONE = torch.ones(1)
MOVED = OrderedDict(a=1, b=1)
MOVED.move_to_end("a")
FUNCTION_FACTS = (
    other_function,
    other_function.__code__,
    other_function.__defaults__,
    other_function.__kwdefaults__,
)


LEAF, WATCHED = torch.empty(1, requires_grad=True), torch.empty(1, requires_grad=True)


@functools.cache
def is_watched(tensor: torch.Tensor) -> bool:
    return tensor is WATCHED


is_watched(WATCHED)
HISTORY = LEAF * 2  # which does not watch
WATCHED.register_hook(lambda gradient: None)


class Ambient:
    def __init__(self, changed: str | None) -> None:
        self.changed = changed

    def holds(self) -> bool:
        return self.changed is None

    def difference(self) -> str | None:
        return self.changed


K = GuardKind
ARRAY = np.arange(3.0)
S0, S1 = Symbol("s0", 2), Symbol("s1", 2)
# kind, source, expected, values that hold, values that fail, words
ROWS: list[tuple[GuardKind, Source | None, Any, dict[str, Any], dict[str, Any], str]] = [
    (K.TENSOR_MATCH, X, facts(BASE), {"x": BASE}, {"x": None}, "type mismatch"),
    (K.STORAGE_OFFSET, X, 1, {"x": BASE[1:]}, {"x": BASE},
     "storage offset mismatch. expected 1, actual 0"),
    (K.VIEW, X, "a view of what needs no gradient", {"x": BASE[1:]}, {"x": BASE},
     "view mismatch. expected a view of what needs no gradient, actual no view"),
    (K.TYPE_MATCH, X, int, {"x": 1}, {"x": True}, "type mismatch. expected <class 'int'>"),
    (K.ID_MATCH, X, Thing, {"x": Thing}, {"x": Odd}, "identity mismatch"),
    (K.EQUALS_MATCH, X, 1, {"x": 1}, {"x": 2}, "value mismatch"),
    (K.COMPARES, X, ("gt", 0, True), {"x": 0.5}, {"x": 0.0},
     "'L['x']' > 0 mismatch. expected True, actual False: it is 0.0"),
    (K.COMPARES, X, ("le", 1.5, False), {"x": float("nan")}, {"x": 1.5},
     "'L['x']' <= 1.5 mismatch"),
    (K.LENGTH, X, 2, {"x": [1, 2]}, {"x": (1,)}, "length mismatch. expected 2, actual 1"),
    (K.LENGTH, X, 1, {"x": Odd(a=1)}, {"x": Odd()}, "length mismatch. expected 1, actual 0"),
    (K.DICT_KEYS, X, ("a", "b"), {"x": {"a": 1, "b": 1}}, {"x": {"b": 1, "a": 1}},
     "keys mismatch. expected ['a', 'b'], actual ['b', 'a']"),
    (K.DICT_KEYS, X, ("b", "a"), {"x": MOVED}, {"x": OrderedDict(a=1, b=1)}, "keys mismatch"),
    (K.DICT_KEYS, X, (1,), {"x": {1: 1}}, {"x": {True: 1}}, "keys mismatch"),
    (K.DICT_KEYS, X, ("a",), {"x": Odd(a=1)}, {"x": Odd(b=1)}, "keys mismatch"),
    (K.DICT_KEYS, X, (), {"x": {}}, {"x": {BASE: 1}},
     "number of keys mismatch. expected 0, actual 1"),
    (K.DICT_KEYS, X, (ONE,), {"x": {ONE: 1}}, {"x": {torch.ones(1): 1}},
     "keys mismatch. expected [Tensor[1]], actual [Tensor[1]]"),
    (K.DICT_CONTAINS, X, (ONE, True), {"x": {ONE: 1}}, {"x": {}},
     "no longer has the key Tensor[1]"),
    (K.DICT_CONTAINS, X, ("a", True), {"x": {"a": 1}}, {"x": {}}, "no longer has the key 'a'"),
    (K.DICT_CONTAINS, X, ("a", False), {"x": Odd()}, {"x": Odd(a=1)}, "now has the key 'a'"),
    (K.HAS_ATTRIBUTE, X, ("here", True), {"x": Thing()}, {"x": 1}, "no longer has the attribute"),
    (K.HAS_ATTRIBUTE, X, ("here", False), {"x": 1}, {"x": Thing()}, "now has the attribute"),
    (K.SAME_OBJECT, X, Y, {"x": BASE, "y": BASE}, {"x": BASE, "y": 1}, "were one object"),
    (K.DIFFERENT_OBJECT, X, Y, {"x": 1, "y": BASE}, {"x": BASE, "y": BASE}, "were two objects"),
    (K.DISTINCT, None, (X, Y), {"x": BASE, "y": BASE[1:]}, {"x": BASE, "y": BASE},
     "'L['x']' and 'L['y']' were two objects and are one now"),
    (K.STORAGE_OVERLAP, None, ((X,), (), (Y,)), {"x": BASE[:1], "y": BASE[1:]},
     {"x": BASE, "y": BASE[1:]}, "share memory now and did not"),
    (K.STORAGE_OVERLAP, None, ((X, Y), (), ()), {"x": BASE[::2], "y": BASE[1::2]},
     {"x": BASE[::2], "y": BASE[2::2]}, "share memory now and did not"),
    (K.STORAGE_OVERLAP, None, ((), (X,), (Y,)), {"x": BASE[:1], "y": BASE.clone()},
     {"x": BASE[:1], "y": BASE[1:]}, "share memory now and did not"),
    (K.ARRAY_MATCH, X, array_facts(np.ones(2)), {"x": np.zeros(2)}, {"x": np.ones(3)}, "mismatch"),
    (K.ARRAY_MATCH, X, array_facts(np.ones(2)), {"x": np.zeros(2)}, {"x": BASE}, "is a Tensor"),
    (K.APART, None, (X, Y), {"x": ARRAY[:1], "y": ARRAY[1:]}, {"x": ARRAY, "y": ARRAY[1:]},
     "share memory now and did not"),
    (K.SIZES, None, SizeCondition(as_expr(S0), 2, 8, ((S0, SizeSource(X, 0)),)),
     {"x": torch.empty(3)}, {"x": torch.empty(9)},
     "2 <= L['x'].size()[0] <= 8 does not hold: L['x'].size()[0] is 9"),
    (K.SIZES, None, SizeCondition(S0 - S1, 0, 0, ((S0, SizeSource(X, 0)), (S1, Y))),
     {"x": torch.empty(3), "y": 3}, {"x": torch.empty(9), "y": 3},
     "L['x'].size()[0] == L['y'] does not hold"),
    (K.SIZES, None, SizeCondition(S0 - S1, None, None, ((S0, X), (S1, Y)), apart=True),
     {"x": 4, "y": 3}, {"x": 3, "y": 3}, "L['x'] != L['y'] does not hold"),
    (K.SIZES, None, SizeCondition(S0 - 1, 0, None, ((S0, StrideSource(X, 0)),)),
     {"x": torch.empty(3, 4)}, {"x": torch.empty(1).expand(3)}, "L['x'].stride()[0] >= 1"),
    (K.ITEMS_LEFT, X, (2, False), {"x": iter([1, 2, 3])}, {"x": iter([1])},
     "items left mismatch. expected at least 2, actual 1"),
    (K.ITEMS_LEFT, X, (2, True), {"x": enumerate([1, 2])}, {"x": zip(range(3), [1, 2, 3])},
     "items left mismatch. expected 2, actual 3"),
    (K.EQUALS_MATCH, PeekSource(X, 1), 2, {"x": iter([1, 2])}, {"x": iter([1])}, "IndexError"),
    (K.AMBIENT, None, Ambient(None), {}, {}, ""),
    (K.ANSWER, X, (len, (), 2), {"x": [1, 2]}, {"x": [1]}, "len() of 'L['x']' was 2 and is 1"),
    (K.NAMESPACE, X, (("a", BASE), ("b", ABSENT)), {"x": {"a": BASE}}, {"x": {"a": BASE, "b": 1}},
     "entry 'b' mismatch. expected ABSENT, actual 1"),
    (K.NAMESPACE, X, (("nn", torch.nn),), {"x": torch}, {"x": math}, "entry 'nn' mismatch"),
    (K.CLASS_LOOKUPS, X, (("here", 1), ("there", ABSENT)), {"x": Thing}, {"x": int},
     "entry 'here' mismatch. expected 1, actual ABSENT"),
    (K.DICT_LACKS, X, frozenset({"a"}), {"x": {}}, {"x": {"a": 1}}, "now has the key 'a'"),
    (K.NO_HOOKS, X, None, {"x": MODULE}, {"x": HOOKED}, "now has hooks in _forward_hooks"),
    (K.NONE_WATCHED, None, (X, Y), {"x": LEAF, "y": LEAF}, {"x": LEAF, "y": WATCHED},
     "somebody watches the gradient of 'L['y']' now"),
    (K.ABSTRACT_CLASSES, None, ((int, Number, True), (str, Number, False)), {}, {}, ""),
    (K.FUNCTIONS, None, (FUNCTION_FACTS,), {}, {}, ""),
    (K.HOLDS, None, SameThread(), {}, {}, ""),
    (K.UNCACHED, X, Uncached(is_watched, (LEAF,), {}, 0), {"x": LEAF}, {"x": WATCHED},
     "'L['x']' is no longer none of the arguments that is_watched knows"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].value)
def test_kinds(row: Any) -> None:
    kind, source, expected, good, bad, words = row
    guard = Guard(source, kind, expected)
    assert outcome(guard, **good) == ""
    if words:
        text = outcome(guard, **bad)
        assert words in text
        if source is not None:
            assert str(source) in text


def test_a_module_without_its_hooks_fails() -> None:
    broken = torch.nn.Linear(1, 1)
    guard = Guard(X, K.NO_HOOKS, None)
    assert outcome(guard, x=broken) == ""
    del broken.__dict__["_forward_hooks"]
    assert outcome(guard, x=broken) == "'L['x']' no longer has _forward_hooks"


def test_cached_results_are_looked_up() -> None:
    state = [1]

    @functools.lru_cache(maxsize=1)
    def cached(key: int) -> int:
        return state[0]

    guard = Guard(None, GuardKind.HOLDS, CachedResult(cached, 5, cached(5)))
    assert outcome(guard) == ""
    cached(6)
    assert "has another answer" in outcome(guard)
    cached(5)  # the same result again
    assert outcome(guard) == ""
    state[0] = 2
    cached.cache_clear()
    assert "has another answer" in outcome(guard)
    cached(5)
    assert "has another answer" in outcome(guard)


def test_every_kind_is_tested() -> None:
    assert {row[0] for row in ROWS} == set(GuardKind) == set(GUARD_KINDS)


class Watching(TorchDispatchMode):
    """A mode of somebody else."""


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.no_grad(),
        lambda: torch.inference_mode(),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        lambda: torch.device("meta"),
        lambda: torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        lambda: torch.backends.cudnn.flags(enabled=False),
        Watching,
    ],
)
def test_ambient_state_is_asked_question_by_question(change: Any) -> None:
    guard = Guard(None, GuardKind.AMBIENT, ambient_state())
    check = compile_guards([guard])
    assert ".holds()" not in check.__braze_source__  # type: ignore[attr-defined]
    assert outcome(guard) == ""
    with change():
        assert outcome(guard).startswith("ambient state mismatch")
    assert outcome(guard) == ""


def test_ambient_defaults() -> None:
    guard = Guard(None, GuardKind.AMBIENT, ambient_state())
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert "default dtype" in outcome(guard)
    finally:
        torch.set_default_dtype(torch.float32)
        assert "deterministic" in outcome(guard)
        torch.use_deterministic_algorithms(False)
    assert outcome(guard) == ""


def test_tensors_of_the_same_facts_are_checked_in_one_loop() -> None:
    tensors = {f"x{i}": torch.empty(2, 3) for i in range(5)}
    guards = [
        Guard(LocalSource(name), GuardKind.TENSOR_MATCH, facts(t)) for name, t in tensors.items()
    ]
    check = compile_guards(guards)
    assert check.__braze_source__.count("is_contiguous") == 1  # type: ignore[attr-defined]
    assert check(frame(**tensors))
    for name in tensors:
        assert not check(frame(**{**tensors, name: torch.empty(3, 2)}))


def test_the_words_of_convolutions() -> None:
    """Said where they are not as PyTorch begins."""
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
        words = str(ambient_state())
    assert "no cuDNN" in words and "float32 convolutions without TF32" in words
    assert "onvolutions" not in str(ambient_state())


def test_ambient_words() -> None:
    guard = Guard(None, GuardKind.AMBIENT, Ambient("grad mode is off now"))
    assert outcome(guard) == "grad mode is off now"


def test_class_lookups_follow_every_change_of_the_class() -> None:
    class Base:
        def run(self) -> int:
            return 1

    class Other:
        def run(self) -> int:
            return 2

    class Middle(Base): ...

    class Leaf(Middle): ...

    run = Base.__dict__["run"]
    guard = Guard(X, GuardKind.CLASS_LOOKUPS, (("run", run), ("extra", ABSENT)))
    check = compile_guards([guard])

    def holds() -> bool:
        result = check(frame(x=Leaf))
        assert result is (explain_failure(build_guard_tree([guard]), frame(x=Leaf)) == "")
        return result

    assert holds() and check(frame(x=Middle)) and not check(frame(x=Other))
    Middle.run = Other.run  # type: ignore[method-assign, assignment]
    assert not holds()
    del Middle.run
    assert holds()
    Base.run = staticmethod(run)  # type: ignore[method-assign, assignment]
    assert not holds()
    Base.run = run  # type: ignore[method-assign]
    Base.extra = None  # type: ignore[attr-defined]
    assert not holds()
    del Base.extra  # type: ignore[attr-defined]
    assert holds()
    Middle.__bases__ = (Other,)
    assert not holds()
    Middle.__bases__ = (Base,)
    assert holds()
    del Base.run
    assert not holds()


def test_global_hooks_and_changed_functions() -> None:
    guard = Guard(None, GuardKind.NO_HOOKS, None)
    assert outcome(guard) == ""
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "all modules" in outcome(guard)
    finally:
        handle.remove()
    functions = Guard(None, GuardKind.FUNCTIONS, (FUNCTION_FACTS,))
    other_function.__defaults__ = (2,)
    try:
        assert outcome(functions) == "function 'other_function' has a new __defaults__"
    finally:
        other_function.__defaults__ = FUNCTION_FACTS[2]
    assert outcome(functions) == ""


# --- sources -------------------------------------------------------------------------------------


def closure_of(value: Any) -> Any:
    return lambda: value


THING = Thing()
THING.__dict__["odd name"] = 5
KEY = object()
SOURCES: list[tuple[Source, Any]] = [
    (X, THING),
    (StackSource(1), "top"),
    (CellSource("cell"), 7),
    (CellObjectSource("cell"), CELL := types.CellType(7)),
    (GlobalSource("thing"), THING),
    (GlobalSource("len"), len),
    (ObjectSource("nn", torch.nn), torch.nn),
    (AttributeSource(X, "here"), 1),
    (AttributeSource(X, "odd name"), 5),
    (InstanceDictSource(X), THING.__dict__),
    (ItemSource(InstanceDictSource(X), "odd name"), 5),
    (ItemSource(LocalSource("defaults"), "a"), 1),
    (ItemSource(LocalSource("ordered"), (1, 2)), 3),
    (ItemSource(LocalSource("odd"), "a"), 1),
    (ItemSource(LocalSource("listed"), -1), 9),
    (DictKeySource(LocalSource("keyed"), 1), KEY),
    (TypeSource(X), Thing),
    (ClosureSource(LocalSource("closure"), 0), 11),
    (FunctionGlobalSource(LocalSource("closure"), "K"), GuardKind),
    (FunctionGlobalSource(LocalSource("closure"), "len"), len),
]


def full_frame() -> FrameValues:
    values = {
        "x": THING, "cell": CELL, "defaults": defaultdict(int, a=1), "odd": Odd(a=1),
        "ordered": OrderedDict({(1, 2): 3}), "listed": [8, 9], "keyed": {"a": 1, KEY: 2},
        "closure": closure_of(11),
    }  # fmt: skip
    return FrameValues(values, ("bottom", "top"), {"thing": THING, "__builtins__": __builtins__})


@pytest.mark.parametrize(
    "source, value", SOURCES, ids=lambda part: str(part).split(" at 0x")[0][:40]
)
def test_sources(source: Source, value: Any) -> None:
    check = compile_entry_check([], [source]).check
    here = full_frame()
    assert check(here) == [value]
    assert read_source(source, here) is value or read_source(source, here) == value
    assert check(frame()) is None or isinstance(source, ObjectSource | GlobalSource)


def test_a_missing_item_of_a_defaultdict_is_not_made() -> None:
    values = defaultdict(list)
    check = compile_entry_check([], [ItemSource(X, "missing")]).check
    assert check(frame(x=values)) is None
    assert not values
    with pytest.raises(READ_FAILURES):
        read_source(ItemSource(X, "missing"), frame(x=values))


def test_unreachable_source_is_worded() -> None:
    guard = Guard(AttributeSource(X, "gone"), GuardKind.ID_MATCH, 1)
    assert outcome(guard, x=THING).startswith("'L['x'].gone' cannot be reached. AttributeError")


# --- order, sharing, printing --------------------------------------------------------------------


def test_sub_sources_are_read_once() -> None:
    weight = ItemSource(InstanceDictSource(AttributeSource(X, "a")), "w")
    bias = ItemSource(InstanceDictSource(AttributeSource(X, "a")), "b")
    made = compile_entry_check(
        [Guard(weight, GuardKind.TYPE_MATCH, int), Guard(bias, GuardKind.TYPE_MATCH, int)],
        [weight, bias],
    )
    text = made.memory.generated.__braze_source__
    assert text.count("L['x']") == 1 and text.count(".__dict__") == 1


def test_modules_attributes_are_read_from_their_dicts_where_guards_allow() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).eval()
    norm = AttributeSource(X, "0")
    layer = ItemSource(ItemSource(InstanceDictSource(X), "_modules"), "0")
    weight, mean = AttributeSource(layer, "weight"), AttributeSource(layer, "running_mean")
    cls = torch.nn.BatchNorm1d
    names = ("weight", "running_mean")
    guards = [
        Guard(layer, K.TYPE_MATCH, cls),
        Guard(weight, K.TENSOR_MATCH, facts(model[0].weight)),
        Guard(mean, K.TENSOR_MATCH, facts(model[0].running_mean)),
        Guard(ObjectSource("B", cls), K.CLASS_LOOKUPS, tuple((n, ABSENT) for n in names)),
        Guard(InstanceDictSource(layer), K.DICT_LACKS, frozenset(names)),
    ]
    made = compile_entry_check(guards, [weight, mean])
    check = made.check
    text = made.memory.generated.__braze_source__
    assert "r1['weight'] if 'weight' in r1" in text or "['_parameters']" in text
    assert check(frame(x=model)) == [model[0].weight, model[0].running_mean]
    model[0].__dict__["weight"] = None
    assert check(frame(x=model)) is None
    del model[0].__dict__["weight"]
    model[0].weight = None
    assert check(frame(x=model)) is None
    assert (
        "['_parameters']"
        not in compile_entry_check(guards[:3], [weight]).memory.generated.__braze_source__
    )  # type: ignore[attr-defined]
    assert norm.name == "0"


def test_an_object_is_checked_before_anything_is_read_from_it() -> None:
    class Trap:
        @property
        def size(self) -> int:
            raise AssertionError("user code of an unexpected class ran")

    guards = [
        Guard(AttributeSource(X, "size"), GuardKind.EQUALS_MATCH, 3),
        Guard(X, GuardKind.TYPE_MATCH, Thing),
    ]
    assert compile_guards(guards)(frame(x=Trap())) is False
    assert order_guards(guards)[0].kind is GuardKind.TYPE_MATCH
