"""Read-only views of dicts (`types.MappingProxyType`) from outside, as those of a signature's
parameters: what the program reads of one is read of a view of its guarded entries.

The dict behind a view has no name by which a guard could find it, so its entries are guarded
through the view. A dict that the program also reaches by another way may be written to there, which
the view would have to show: such a view breaks the graph.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Final

from braze.capture.state.guard_context import CONSTANTS
from braze.capture.state.mapping_probe import dict_behind
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ItemSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_MOST = 64  # entries


def entries_of(interpreter: Interpreter, proxy: object) -> object:
    """A view of the frame's own with the entries of one from outside; the value itself where it is
    none, or its entries cannot be guarded."""
    guard_context = interpreter.guard_context
    if type(proxy) is not types.MappingProxyType or id(proxy) not in guard_context.known:
        return proxy
    behind = dict_behind(proxy)
    plain = type(behind) in _DICTS and len(behind) <= _MOST
    if not plain or "__module__" in behind or not CONSTANTS.issuperset(map(type, behind)):
        return proxy
    if id(behind) in guard_context.known:
        return proxy
    key = (id(proxy), "entries")
    if key not in guard_context.reads:
        source = guard_context.known[id(proxy)][1]
        guard_context.guard(source, GuardKind.DICT_KEYS, tuple(behind))
        entries = {
            name: guard_context.wrap_value(behind[name], ItemSource(source, name))
            for name in behind
        }
        guard_context.reads[key] = types.MappingProxyType(entries)
    return guard_context.reads[key]


# --- private ---------------------------------------------------------------------------------


_DICTS: Final = frozenset({dict, collections.OrderedDict})
