"""Which C code may be called natively: by the module it says it is of, or by its class."""

from __future__ import annotations

import _heapq
import _json
import bisect
import collections
import functools
import gc
import itertools
import math
import operator
import re
import sys
import types
import weakref
from typing import Any

import torch

SAFE_MODULES = frozenset(
    {
        "builtins",
        "math",
        "cmath",
        "operator",
        "_operator",
        "itertools",
        "functools",
        "_functools",
        "collections",
        "_collections",
        "_abc",
        "abc",
        "_struct",
        "_bisect",
        "_heapq",
        "re",
        "_sre",
        "copy",
        "_weakref",
        "_statistics",
        "unicodedata",
        "types",
        "weakref",
        "_string",
        "_random",
        "_json",
        "_datetime",
        "datetime",
        "decimal",
        "_decimal",
        "fractions",
        "binascii",
        "zlib",
        "array",
        "_codecs",
        "_stat",
        "_pickle",
        "_io",
        "_csv",
        "marshal",
    }
)
# Those of them whose functions read what objects have.
STATE_READERS = frozenset({"_pickle", "_json", "marshal"})
# Functions of other modules that only ask, or change what they are given.
SAFE_FUNCTIONS = frozenset(
    {
        sys.getrecursionlimit,
        sys.getsizeof,
        sys.intern,
        sys.get_int_max_str_digits,
        sys.getdefaultencoding,
        sys.is_finalizing,
        gc.is_tracked,
        gc.isenabled,
        gc.get_threshold,
        str.maketrans,
        bytes.maketrans,
    }
)
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


def identifier(function: Any) -> tuple[str, str]:
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
