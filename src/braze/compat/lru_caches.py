"""What a `functools.lru_cache` holds. Python does not show it; the garbage collector does."""

from __future__ import annotations

import functools
import gc
from typing import Any, final

NOTHING = object()
LRU_CACHE: Any = type(functools.lru_cache(len))


def _table_of(cached: Any) -> dict[Any, Any] | None:
    """The dict of a cache: by key the result, or where the size is bounded a link that has it."""
    own = cached.__dict__
    tables = [held for held in gc.get_referents(cached) if type(held) is dict and held is not own]
    # Results may be dicts, too: the table comes after all of them.
    return tables[-1] if tables else None


def _is_typed(cached: Any) -> bool:
    parameters = getattr(cached, "cache_parameters", None)
    return bool(parameters()["typed"]) if parameters is not None else False


def maximum_size(cached: Any) -> int | None:
    """How many results are kept; None: all."""
    size: int | None = cached.cache_info().maxsize
    return size


def is_full(cached: Any) -> bool:
    """Whether a further result drops one that is kept."""
    _, _, maxsize, currsize = cached.cache_info()
    return maxsize is not None and currsize >= maxsize


def key_of(cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of a call, as a cache of the same kind makes it. Raises TypeError where it cannot
    be hashed."""
    twin = functools.lru_cache(maxsize=None, typed=_is_typed(cached))(_nothing)
    twin(*args, **kwargs)
    return next(iter(_table_of(twin) or {}))


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def held_result(cached: Any, key: Any) -> Any:
    """The result that is cached under a key, or NOTHING; nothing is counted."""
    table = _table_of(cached)
    link = NOTHING if table is None else table.get(key, NOTHING)
    if link is NOTHING or type(link) is not _LINK:
        return link
    stored = next(known for known in table if known == key)  # type: ignore[union-attr]
    held = gc.get_referents(cached)
    places = [at for at, value in enumerate(held[:-2]) if value is stored]
    found = [held[at + 1] for at in places if held[at + 2] is _LINK]
    return found[0] if found else NOTHING


def _link_class() -> Any:
    cached = functools.lru_cache(maxsize=1)(_nothing)
    cached(1)
    return type(next(iter((_table_of(cached) or {}).values())))


_LINK = _link_class()


@final
class CachedResult:
    """A question: does the cache still hold this very result (NOTHING: none) for this key?

    As long as nothing was missed the table alone is looked at: only a miss evicts, and uses the
    link of what it evicts again.
    """

    __slots__ = ("cached", "key", "link", "misses", "result", "table")

    def __init__(self, cached: Any, key: Any, result: Any) -> None:
        self.cached = cached
        self.key = key
        self.result = result
        table = _table_of(cached)
        self.table: dict[Any, Any] = {} if table is None else table
        self.link = self.table.get(key, NOTHING)
        self.misses = cached.cache_info().misses

    def holds(self) -> bool:
        """Whether it does."""
        link = self.table.get(self.key, NOTHING)
        if link is not self.link:
            if link is NOTHING or self.result is NOTHING or type(link) is not _LINK:
                return False
        elif type(link) is not _LINK or self.cached.cache_info().misses == self.misses:
            return True
        if held_result(self.cached, self.key) is not self.result:
            return False
        self.link, self.misses = link, self.cached.cache_info().misses
        return True

    def __str__(self) -> str:
        return f"what {getattr(self.cached, '__qualname__', 'a function')} has cached"


@final
class CountedCall:
    """A call of a cached function after a graph ran: the cache counts it, and knows what was used
    last. counts: how many calls the capture made itself."""

    __slots__ = ("_args", "_cached", "_kwargs", "made")

    def __init__(self, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._cached = cached
        self._args = args
        self._kwargs = kwargs
        self.made = 0

    def __call__(self) -> None:
        if self.made:
            self.made -= 1
        else:
            self._cached(*self._args, **self._kwargs)
