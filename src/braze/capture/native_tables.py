"""Which C code may be called natively: by the module it says it is of, or by its class."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
import types

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
