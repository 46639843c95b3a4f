"""What a `functools.lru_cache` holds. Python does not show it; the garbage collector does."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import types
from collections.abc import Callable
from typing import Any, final

from braze.compat.python.code_patching import redirected_code

NOTHING = object()
LRU_CACHE: Any = type(functools.lru_cache(len))


def _table_of(cached: object) -> dict[object, object] | None:
    """The dict of a cache: by key the result, or where the size is bounded a link that has it."""
    own = cached.__dict__
    tables = [held for held in gc.get_referents(cached) if type(held) is dict and held is not own]
    # Results may be dicts, too: the table comes after all of them.
    return tables[-1] if tables else None


def cached_function(cached: Any) -> object:
    """The function whose results are kept. `__wrapped__` may have been given another."""
    table, held = _table_of(cached), gc.get_referents(cached)
    if table is None:  # a cache of size 0
        return cached.__wrapped__
    place = max(at for at, value in enumerate(held) if value is table)
    return held[place + 1]


def _is_typed(cached: object) -> bool:
    parameters = getattr(cached, "cache_parameters", None)
    return bool(parameters()["typed"]) if parameters is not None else False


def _info_of(cached: object) -> Any:
    return LRU_CACHE.cache_info(cached)


def maximum_size(cached: object) -> int | None:
    """How many results are kept; None: all."""
    size: int | None = _info_of(cached).maxsize
    return size


def has_room(cached: object, count: int) -> bool:
    """Whether so many further results drop none that is kept."""
    _, _, maxsize, currsize = _info_of(cached)
    return maxsize is None or currsize + count <= maxsize


def key_of(cached: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The key of a call, as a cache of the same kind makes it. Raises TypeError where it cannot
    be hashed."""
    twin = functools.lru_cache(maxsize=None, typed=_is_typed(cached))(_nothing)
    twin(*args, **kwargs)
    return next(iter(_table_of(twin) or {}))


def _nothing(*args: object, **kwargs: object) -> None: ...


def held_result(cached: object, key: object) -> object:
    """The result that is cached under a key, or NOTHING; nothing is counted."""
    table = _table_of(cached)
    link = NOTHING if table is None else table.get(key, NOTHING)
    if link is NOTHING or type(link) is not _LINK:
        return link
    number = hash(key)  # a dict asks for equality only where these are equal
    stored = next(known for known in table or () if hash(known) == number and known == key)
    held = gc.get_referents(cached)
    places = [at for at, value in enumerate(held[:-2]) if value is stored]
    found = [held[at + 1] for at in places if held[at + 2] is _LINK]
    return found[0] if found else NOTHING


def _link_class() -> type[object]:
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

    def __init__(self, cached: Any, key: object, result: object) -> None:
        self.cached = cached
        self.key = key
        self.result = result
        table = _table_of(cached)
        self.table: dict[Any, Any] = {} if table is None else table
        self.link = self.table.get(key, NOTHING)
        self.misses = _info_of(cached).misses

    def holds(self) -> bool:
        """Whether it does."""
        link = self.table.get(self.key, NOTHING)
        if link is not self.link:
            if link is NOTHING or self.result is NOTHING or type(link) is not _LINK:
                return False
        elif type(link) is not _LINK or _info_of(self.cached).misses == self.misses:
            return True
        if held_result(self.cached, self.key) is not self.result:
            return False
        self.link, self.misses = link, _info_of(self.cached).misses
        return True

    def __str__(self) -> str:
        return f"what {getattr(self.cached, '__qualname__', 'a function')} has cached"


@final
class FillableResult:
    """A question: does the cache hold this very result for this key, or none at all?

    What it holds is compared again only behind a miss, as by CachedResult.
    """

    __slots__ = ("_cached", "_key", "_link", "_misses", "_result", "_table")

    def __init__(self, cached: object, key: object, result: object) -> None:
        self._cached = cached
        self._key = key
        self._result = result
        table = _table_of(cached)
        self._table: dict[Any, Any] = {} if table is None else table
        self._link = NOTHING
        self._misses = -1

    def holds(self) -> bool:
        """Whether it does."""
        link = self._table.get(self._key, NOTHING)
        if link is NOTHING:
            return True
        if type(link) is not _LINK:
            return link is self._result
        misses = _info_of(self._cached).misses
        if link is self._link and misses == self._misses:
            return True
        if held_result(self._cached, self._key) is not self._result:
            return False
        self._link, self._misses = link, misses
        return True

    def __str__(self) -> str:
        return f"what {getattr(self._cached, '__qualname__', 'a function')} has cached, if anything"


@final
class Room:
    """A question: can the cache take so many further results without dropping one?"""

    __slots__ = ("cached", "count")

    def __init__(self, cached: Any, count: int) -> None:
        self.cached = cached
        self.count = count

    def holds(self) -> bool:
        """Whether it can."""
        return has_room(self.cached, self.count)

    def __str__(self) -> str:
        return f"the room in the cache of {getattr(self.cached, '__qualname__', 'a function')}"


@final
class Uncached:
    """A question to one argument of a call of a cached function: has the cache no result for it?

    place: of the argument among args; its value there is not looked at. A name: among kwargs.
    """

    __slots__ = ("_args", "_cached", "_kwargs", "_place", "_table")

    def __init__(
        self, cached: object, args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str
    ) -> None:
        self._cached = cached
        # Neither the argument of now nor its key is kept alive.
        self._args = [None if at == place else value for at, value in enumerate(args)]
        self._kwargs = {name: None if name == place else v for name, v in kwargs.items()}
        self._place = place
        self._table = _table_of(cached)

    def of(self, value: object) -> bool:
        """Whether it has none."""
        if not self._table:
            return True
        args, kwargs = list(self._args), dict(self._kwargs)
        if isinstance(self._place, int):
            args[self._place] = value
        else:
            kwargs[self._place] = value
        return key_of(self._cached, tuple(args), kwargs) not in self._table

    def __str__(self) -> str:
        return f"none of the arguments that {getattr(self._cached, '__qualname__', 'it')} knows"


@final
class CountedCall:
    """A call of a cached function after a graph ran: the cache counts it, and knows what was used
    last. counts: how many calls the capture made itself."""

    __slots__ = ("_args", "_kwargs", "cached", "made")

    def __init__(self, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.cached = cached
        self._args = args
        self._kwargs = kwargs
        self.made = 0

    def __call__(self) -> None:
        if self.made:
            self.made -= 1
        else:
            self.cached(*self._args, **self._kwargs)


@final
class RepeatedCall:
    """A call of a cached function whose result is cached, after a graph ran. names: of the last
    arguments, which are keywords."""

    __slots__ = ("_names", "cached")

    def __init__(self, cached: Any, names: tuple[str, ...]) -> None:
        self.cached = cached
        self._names = names

    def __call__(self, *given: Any) -> None:
        count = len(given) - len(self._names)
        self.cached(*given[:count], **dict(zip(self._names, given[count:])))


class _RaisedInFunction(Exception):
    """Stands for what the function raised."""


@final
class FilledCall:
    """A call of a cached function whose body was interpreted: the cache calls the function, counts
    that, and gets the interpreted result.

    names: of the last arguments, which are keywords. raised: whether the function raised.
    """

    __slots__ = ("_function", "_names", "_raised", "cached")

    def __init__(
        self, cached: Any, function: types.FunctionType, names: tuple[str, ...], raised: bool
    ) -> None:
        self.cached = cached
        self._function = function
        self._names = names
        self._raised = raised

    def __call__(self, result: object, *given: Any) -> None:
        count = len(given) - len(self._names)
        kwargs = dict(zip(self._names, given[count:]))
        answers = _gives(self._function, self._answer(result))
        with _FILLING, answers, contextlib.suppress(_RaisedInFunction):
            self.cached(*given[:count], **kwargs)

    def _answer(self, result: object) -> Callable[[], Any]:
        def answer() -> object:
            if self._raised:
                raise _RaisedInFunction
            return result

        return answer


# Two threads that give one function other code in turn would leave it that of the other.
_FILLING = threading.RLock()


@contextlib.contextmanager
def _gives(function: types.FunctionType, answer: Callable[[], object]) -> Any:
    """Meanwhile the function answers this thread without running; others get what they always
    do."""
    code, thread = function.__code__, threading.get_ident()

    def called(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if threading.get_ident() == thread:
            return answer()
        closure, space = function.__closure__, function.__globals__
        other = types.FunctionType(code, space, function.__name__, function.__defaults__, closure)
        other.__kwdefaults__ = function.__kwdefaults__
        return other(*args, **kwargs)

    function.__code__ = redirected_code(code, called)
    try:
        yield
    finally:
        function.__code__ = code
