"""Attributes of modules that may be read from the module's own dicts.

`module.weight` fails as a plain attribute before `Module.__getattr__` finds it: ten times the work
of `module.__dict__['_parameters']['weight']`. Both give the same where guards say that neither the
class nor the instance dict has the name, which is what capture guards when it reads one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from braze.ir.captured.guard import ABSENT, Guard, GuardKind
from braze.ir.captured.source import AttributeSource, InstanceDictSource, ObjectSource, Source

_GETATTR = torch.nn.Module.__getattr__


def module_reads(guards: Iterable[Guard], types: Mapping[Source, type]) -> dict[Source, str]:
    """For each AttributeSource that may be read so, the dict in which it was found."""
    guards = tuple(guards)
    absent_of_class = {
        (guard.source.value, name)
        for guard in guards
        if guard.kind is GuardKind.CLASS_LOOKUPS and isinstance(guard.source, ObjectSource)
        for name, found in guard.expected
        if found is ABSENT
    }
    absent_of_instance = {
        (guard.source.base, name)
        for guard in guards
        if guard.kind is GuardKind.DICT_LACKS and isinstance(guard.source, InstanceDictSource)
        for name in guard.expected
    }
    found: dict[Source, str] = {}
    for guard in guards:
        source = guard.source
        if not isinstance(source, AttributeSource) or source in found:
            continue
        cls = types.get(source.base)
        if cls is None or not issubclass(cls, torch.nn.Module) or cls.__getattr__ is not _GETATTR:
            continue
        if (cls, source.name) in absent_of_class and (
            (source.base, source.name) in absent_of_instance
        ):
            kind = _kind(guard, types)
            if kind is not None:
                found[source] = kind
    return found


def _kind(guard: Guard, types: Mapping[Source, type]) -> str | None:
    assert guard.source is not None
    if guard.kind is GuardKind.TENSOR_MATCH:
        is_parameter = issubclass(guard.expected.tensor_class, torch.nn.Parameter)
        return "_parameters" if is_parameter else "_buffers"
    known = types.get(guard.source)
    return "_modules" if known is not None and issubclass(known, torch.nn.Module) else None
