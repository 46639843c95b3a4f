"""Numbers that are measured once on a machine, and kept beside its kernels.

    <cache>/rates/<key>    {"rate": 2.9e12}    key: all that the number depends on

While one process measures, others wait for it. What cannot be measured is not kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable

from braze.cache import cache_of
from braze.options import Options

_WAITED = 10.0  # seconds for another process that measures
_LOG = logging.getLogger("braze.perf_hints")


def kept_measurement(
    name: str,
    facts: Iterable[object],
    measure: Callable[[], float],
    describe: Callable[[float], str],
    options: Options,
) -> float | None:
    """A number above zero, from the cache or measured; None where neither gives one. name: of the
    number in its entry. facts: what it depends on. describe: says a number in a line of the log.
    Raises what `measure` raises."""
    key = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:32]

    def made() -> bytes:
        began = time.perf_counter()
        found = measure()
        spent = (time.perf_counter() - began) * 1e3
        note_measurement(f"{describe(found)}, measured in {spent:.0f} ms")
        return json.dumps({name: found}).encode()

    def accepts(content: bytes) -> bool:
        return _number_in(content, name) is not None

    return _number_in(cache_of(options).obtain("rates", key, made, _WAITED, accepts), name)


def note_measurement(text: str) -> None:
    """A line of the log `perf_hints`: what was measured, or why it could not be."""
    _LOG.info("%s", text, extra={"origin": "", "artefact": "perf_hints"})


def _number_in(content: bytes, name: str) -> float | None:
    """The number in an entry; None where there is none."""
    try:
        number = json.loads(content)[name]
    except (ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, float) and math.isfinite(number) and number > 0 else None
