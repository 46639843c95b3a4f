"""The vocabulary: idioms of Python's references (language and library) and of PyTorch's."""

from __future__ import annotations

from tests.fuzz.reference.templates import Idiom, parse_idioms
from tests.fuzz.reference.vocabulary import (
    builtin_types,
    classes,
    contexts,
    control,
    gradients,
    library,
    lifetimes,
    modules,
    operators,
    tensors,
)

OPERATORS: tuple[Idiom, ...] = parse_idioms("operators", operators.TEXT)
_GROUPS = (
    builtin_types,
    classes,
    contexts,
    control,
    gradients,
    library,
    lifetimes,
    modules,
    tensors,
)
IDIOMS: tuple[Idiom, ...] = tuple(
    [one for group in _GROUPS for one in parse_idioms(group.__name__.split(".")[-1], group.TEXT)]
)
