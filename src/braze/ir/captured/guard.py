"""Guards: what was assumed of the world outside the frame, as data."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.captured.source import Source
from braze.ir.origin import UNKNOWN, Origin
from braze.shapes.binding import python_text, with_remainders
from braze.shapes.expr import Expr, Symbol

# Builtin classes whose lengths are guarded.
SIZED = (dict, list, tuple, set, frozenset, deque, str, bytes, bytearray, range)


def base_length(value: Any) -> int:
    """`len` by the builtin container that the object is or extends: what GuardKind.LENGTH asks."""
    for base in SIZED:
        if issubclass(type(value), base):
            return int(base.__len__(value))
    return len(value)


class GuardKind(enum.Enum):
    """What a guard asks of the object at its source; `expected` is given in brackets."""

    TENSOR_MATCH = "TENSOR_MATCH"  # metadata of a tensor [TensorFacts]
    ARRAY_MATCH = "ARRAY_MATCH"  # metadata of an array of NumPy's [`array_facts`]
    STORAGE_OFFSET = "STORAGE_OFFSET"  # where a tensor begins in its storage, in elements [int]:
    #   only of tensors whose offset the program used (`as_strided`, `storage_offset()`)
    TYPE_MATCH = "TYPE_MATCH"  # type(x) is expected [class]
    ID_MATCH = "ID_MATCH"  # x is expected [object]: functions, classes, modules, None, True
    EQUALS_MATCH = "EQUALS_MATCH"  # same exact type and equal [constant]; floats compare by bits
    COMPARES = "COMPARES"  # how a float compares with a number [(name in `operator`, number, bool)]
    LENGTH = "LENGTH"  # len of an exact builtin container or its subclass's base [int]
    ITEMS_LEFT = "ITEMS_LEFT"  # how many items a builtin iterator has yet to give, at least, or
    #   exactly [(int, bool)]
    DICT_KEYS = "DICT_KEYS"  # list(dict) == expected [tuple of constants, in order]
    DICT_CONTAINS = "DICT_CONTAINS"  # [(key, bool)]: whether a constant key is there
    HAS_ATTRIBUTE = "HAS_ATTRIBUTE"  # [(name, bool)]: hasattr, where it runs no user code
    SAME_OBJECT = "SAME_OBJECT"  # the object at source is the object at expected [Source]
    DIFFERENT_OBJECT = "DIFFERENT_OBJECT"  # ... is not [Source]
    DISTINCT = "DISTINCT"  # no two of the sources are one object [tuple of Source]
    VIEW = "VIEW"  # what autograd takes a tensor for where it is written to [str]: only of tensors
    #   of which the program, or a write that gradients flow through, asked it
    STORAGE_OVERLAP = "STORAGE_OVERLAP"  # no written input meets another [a tuple an `Access`]
    APART = "APART"  # arrays and tensors have no bytes in common; source is None [tuple of Source]
    SIZES = "SIZES"  # a relation between sizes and numbers; source is None [SizeCondition]
    AMBIENT = "AMBIENT"  # the ambient state vector; source is None [AmbientState]
    ANSWER = (
        "ANSWER"  # what a C function says of the process, or of the object at source [(function,
    )
    #   further arguments, answer)]: only of what the program asked and no other guard has
    # The following gather many reads of one thing into one guard, at most one a source.
    NAMESPACE = "NAMESPACE"  # entries of a dict (or a module's dict) [tuple of (name, object or
    #   ABSENT)]: each is that very object
    CLASS_LOOKUPS = "CLASS_LOOKUPS"  # raw lookups along the MRO of the class at source, without
    #   descriptors [tuple of (name, object or ABSENT)]: each is that very object, and so is the
    #   MRO, under the name `MRO`
    DICT_LACKS = "DICT_LACKS"  # a dict (mostly an instance dict) has none of [frozenset of keys]
    NO_HOOKS = "NO_HOOKS"  # an nn.Module has no forward, pre-forward or backward hooks of its own
    #   [None]; with source None: the global module hooks are empty
    NONE_WATCHED = "NONE_WATCHED"  # nobody watches the gradients of these leaves: no hooks, no
    #   reducer; source is None [tuple of Source]
    ABSTRACT_CLASSES = "ABSTRACT_CLASSES"  # what abstract classes say of other classes; source is
    #   None [tuple of (class, abstract class, whether it is a subclass)]
    HOLDS = "HOLDS"  # a question about the process has the same answer: what a functools.lru_cache
    #   has cached, which thread this is; source is None [an object with `holds()`]
    UNCACHED = "UNCACHED"  # a cached function has no result for an argument [an object with
    #   `of(argument)`]
    FUNCTIONS = "FUNCTIONS"  # source is None [tuple of (function, code, defaults, kwdefaults)]:
    #   `__code__`, `__defaults__`, `__kwdefaults__` of each are those very objects


# The name under which CLASS_LOOKUPS compares the MRO itself.
MRO = "(mro)"


@final
class _Absent:
    """Stands for "not there" in NAMESPACE and CLASS_LOOKUPS."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@final
@frozen
class TensorFacts:
    """What TENSOR_MATCH compares. A None in shape or stride matches any size there.

    keys: the set of dispatch keys as an integer: beside device and layout, it says whether the
        tensor is lazily conjugated or negated, all zeros without memory, an inference tensor, or
        wrapped by a function transform. 0 matches any.
    """

    tensor_class: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    layout: torch.layout = torch.strided
    is_leaf: bool | None = None
    keys: int = 0


@final
@frozen(eq=False)
class SizeCondition:
    """`lower <= expr <= upper` (None: unbounded), or with `apart` that expr is not 0.

    sources: where the number is found that each symbol of expr stands for.
    """

    expr: Expr
    lower: int | None
    upper: int | None
    sources: tuple[tuple[Symbol, Source], ...]
    apart: bool = False

    def __str__(self) -> str:
        names = {symbol: str(source) for symbol, source in self.sources}
        if self.apart or (self.lower, self.upper) == (0, 0) or self.upper is None:
            least = 0 if self.lower is None else self.lower
            moved = with_remainders(self.expr - least)
            left = Expr(tuple((m, c) for m, c in moved.terms if c > 0))
            right = -Expr(tuple((m, c) for m, c in moved.terms if c < 0))
            if self.lower is not None and self.upper is None and len(self.expr.terms) == 1:
                return f"{self.lower} <= {python_text(self.expr, names)}"
            sign = "!=" if self.apart else "==" if self.upper == 0 else ">="
            return f"{python_text(left, names)} {sign} {python_text(right, names)}"
        start = "" if self.lower is None else f"{self.lower} <= "
        return f"{start}{python_text(with_remainders(self.expr), names)} <= {self.upper}"


@final
@frozen(eq=False)
class Guard:
    source: Source | None
    kind: GuardKind
    expected: Any
    origin: Origin = UNKNOWN
