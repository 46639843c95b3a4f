"""Which C code may be called natively: by the module it says it is of, or by its class."""

from __future__ import annotations

import _codecs
import _heapq
import _json
import bisect
import collections
import functools
import itertools
import math
import operator
import re
import sys
import types
import weakref
from typing import Any

import torch

# Modules whose C functions only compute from what they are given.
_PURE_MODULES = frozenset(
    "math cmath operator _operator itertools functools _functools collections _collections _struct "
    "_bisect _heapq re _sre _statistics unicodedata _string _json fractions binascii zlib array "
    "_stat copy types".split()
)
# Functions of modules whose others read what belongs to the process, or write to it: registered
# classes and codecs, threads, contexts.
_PURE_FUNCTIONS: dict[str, frozenset[str]] = {
    "builtins": frozenset(
        "abs aiter all anext any ascii bin callable chr divmod format getattr hasattr hash hex "
        "isinstance issubclass iter len max min next oct ord pow repr round sorted sum setattr "
        "delattr __build_class__".split()
    ),
    "_abc": frozenset({"_abc_init", "_abc_instancecheck", "_abc_subclasscheck"}),
    "_codecs": frozenset(
        {name for name in dir(_codecs) if name.endswith(("encode", "decode"))} | {"charmap_build"}
    ),
    "_csv": frozenset({"reader", "writer"}),
    "_pickle": frozenset({"dump", "dumps", "load", "loads"}),
    "_weakref": frozenset({"proxy"}),
    "marshal": frozenset({"dump", "dumps", "load", "loads"}),
}
# Modules of whose classes the C methods compute from the instance and the arguments.
SAFE_MODULES = (
    _PURE_MODULES
    | _PURE_FUNCTIONS.keys()
    | {"abc", "weakref", "_random", "_datetime", "datetime", "_io"}
)
# Those methods that read the process: its clock, its time zone, which classes there are, what was
# cached.
_OF_PROCESS = frozenset(
    {
        (cls, name)
        for cls, names in (
            ("type", "__subclasses__ mro"),
            ("date", "today fromtimestamp"),
            ("datetime", "now today utcnow fromtimestamp timestamp astimezone strftime"),
            ("_lru_cache_wrapper", "cache_info cache_clear"),
        )
        for name in names.split()
    }
)
# Those of them whose functions read what objects have.
STATE_READERS = frozenset({"_pickle", "_json", "marshal"})
# Functions of other modules that only ask what never changes.
_CONSTANT_FUNCTIONS = frozenset(
    {sys.intern, sys.getdefaultencoding, str.maketrans, bytes.maketrans}
)
# `object`'s own methods that read nothing of an instance but which one it is, and of what class.
OF_ANY_OBJECT = frozenset(
    "__init__ __new__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __init_subclass__ "
    "__subclasshook__ __class__".split()
)


def is_pure(function: Any) -> bool:
    """Whether a C function of a module only computes from what it is given."""
    module = str(getattr(function, "__module__", None))
    if module in _PURE_MODULES or function in _CONSTANT_FUNCTIONS:
        return True
    return function.__name__ in _PURE_FUNCTIONS.get(module, ())


def reads_process(holder: type, name: str) -> bool:
    """Whether a class's C method reads what belongs to the process."""
    return any((base.__name__, name) in _OF_PROCESS for base in holder.__mro__)


SAFE_CLASSES = frozenset(
    {
        collections.deque,
        collections.OrderedDict,
        collections.defaultdict,
        functools.partial,
        itertools.chain,
        types.MappingProxyType,
        operator.itemgetter,
        operator.attrgetter,
        torch.Size,
        torch.dtype,
        torch.device,
        torch.finfo,
        torch.iinfo,
    }
)
# What only keeps its arguments, and calls them no sooner than it is called itself.
KEEPING = frozenset(
    {
        functools.partial,
        itertools.repeat,
        staticmethod,
        classmethod,
        property,
        types.MethodType,
        types.CellType,
    }
)


def identifier(function: object) -> tuple[str, str]:
    """(module, qualified name): a module of C code may be loaded twice."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    return (module if isinstance(module, str) else "", name if isinstance(name, str) else "")


# What calls some of its arguments, now or later: their positions, those of `self` and of the class
# not counted. Keyword arguments that can be called are called.
_CALLING: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (map, (0,)),
    (filter, (0,)),
    (iter, (0,)),
    (itertools.accumulate, (1,)),
    (itertools.dropwhile, (0,)),
    (itertools.filterfalse, (0,)),
    (itertools.groupby, (1,)),
    (itertools.starmap, (0,)),
    (itertools.takewhile, (0,)),
    (functools.cmp_to_key, (0,)),
    (type(functools.lru_cache(len)), (0,)),
    (weakref.ref, (1,)),
    (operator.call, (0,)),
    (bisect.bisect_left, ()),
    (bisect.bisect_right, ()),
    (bisect.insort_left, ()),
    (bisect.insort_right, ()),
    (BaseExceptionGroup.split, (0,)),
    (BaseExceptionGroup.subgroup, (0,)),
    (_json.make_encoder, (1, 2)),
    (re.Pattern.sub, (0,)),
    (re.Pattern.subn, (0,)),
)
# Those to which a class says what to look for, and is not called.
LOOKING_FOR_CLASSES = frozenset(
    map(identifier, (BaseExceptionGroup.split, BaseExceptionGroup.subgroup))
)
CALLING = {identifier(function): positions for function, positions in _CALLING}
# Functions that change the container that is their first argument, as (module, name): a module may
# be loaded twice.
CHANGING = frozenset(
    {
        *[("_heapq", name) for name in dir(_heapq) if name.lstrip("_").startswith("heap")],
        ("_bisect", "insort_left"),
        ("_bisect", "insort_right"),
        ("_collections", "_count_elements"),
    }
)
# Methods of builtin containers that change them.
CHANGING_METHODS = frozenset(
    {
        "append",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "add",
        "discard",
        "difference_update",
        "intersection_update",
        "symmetric_difference_update",
        "appendleft",
        "extendleft",
        "popleft",
        "rotate",
        "move_to_end",
        "__setitem__",
        "__delitem__",
        "__iadd__",
        "__imul__",
        "__ior__",
        "__iand__",
        "__isub__",
        "__ixor__",
        "__init__",
        "subtract",
    }
)

# Methods of builtin containers that say what these hold, whatever their class is. (`copy`,
# `__add__` and `__repr__` of a subclass's instance show its class.)
READING_METHODS = frozenset(
    {
        "__contains__",
        "__eq__",
        "__ge__",
        "__getitem__",
        "__gt__",
        "__iter__",
        "__le__",
        "__len__",
        "__lt__",
        "__ne__",
        "__reversed__",
        "count",
        "get",
        "index",
        "isdisjoint",
        "issubset",
        "issuperset",
        "items",
        "keys",
        "values",
    }
)

# What iterates over its arguments.
ITERATING_METHODS = frozenset(
    {
        "extend",
        "extendleft",
        "update",
        "join",
        "fromkeys",
        "_count_elements",
        "union",
        "intersection",
        "difference",
        "symmetric_difference",
        "issubset",
        "issuperset",
        "isdisjoint",
        "difference_update",
        "intersection_update",
        "symmetric_difference_update",
        "subtract",
    }
)
ITERATING = frozenset({zip, map, filter, enumerate, reversed, math.prod, math.fsum})

# What iterates over the items of an argument: its position.
OVER_ITEMS = {
    identifier(itertools.chain.from_iterable): 0,
    identifier(itertools.starmap): 1,
}
