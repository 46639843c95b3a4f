"""A compiled module that is, for every purpose but calls, the module that it was made from.

    compiled = shield(model, find)
    type(compiled)          a class of its own, with bases (Shield, type(model))
    compiled.__dict__       the model's own dict: parameters, hooks, flags, from either side
    compiled.__class__      the model's class, also when that is replaced (parametrization, FSDP)
    compiled(x)             find(model)(model, x)
    compiled.forward(x)     the forward of the model's class, compiled; what was put in its place in
                            the model's dict is found there, as ever
    compiled == model       and hash(compiled) == hash(model): tables that are kept beside modules
                            (FSDP2's state) have one entry for both
    compiled._orig_mod      the model, where programs look for it that know torch.compile's modules

Limits: `type(compiled) is type(model)` and `compiled is model` are false, and loading a pickle
needs Braze.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from braze.compat.python.hidden_frames import hide_frames
from braze.compat.python.other_compilers import hide_from_other_compilers, interpreted_as
from braze.errors import warn

# Of a model: the function that is called with it first, and then the arguments.
FindCall = Callable[[torch.nn.Module], Callable[..., Any]]
Remake = Callable[[torch.nn.Module], torch.nn.Module]

_ORIGINAL = "_braze_original"
_FIND = "_braze_find"
_REMAKE = "_braze_remake"
_END = "_braze_end"


def _part(shielded: object, name: str) -> Any:
    """A field of the shield, past the model's own attributes."""
    return type.__getattribute__(type(shielded), name)


def _get_class(self: object) -> type:
    cls: type = _part(self, _ORIGINAL).__class__
    return cls


def _set_class(self: object, cls: type) -> None:
    _part(self, _ORIGINAL).__class__ = cls


class Shield:
    """The first base of a compiled module's class; what it does not define is the model's own."""

    __slots__ = ()
    __class__ = property(_get_class, _set_class)

    def __init_subclass__(cls, **keywords: object) -> None:
        """Nothing: the model's class must not learn of this subclass."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_part(self, _ORIGINAL), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_part(self, _ORIGINAL), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_part(self, _ORIGINAL), name)

    def __eq__(self, other: Any) -> Any:
        return _part(self, _ORIGINAL) == (original_of(other) if is_shielded(other) else other)

    def __hash__(self) -> int:
        return hash(_part(self, _ORIGINAL))

    @property
    def _orig_mod(self) -> torch.nn.Module:
        model: torch.nn.Module = _part(self, _ORIGINAL)
        return model

    @property
    def _torchdynamo_orig_callable(self) -> torch.nn.Module:
        """What `torch.compile(compiled)` compiles, where the number says that it is for `self`."""
        model: torch.nn.Module = _part(self, _ORIGINAL)
        return model

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)

    def __prepare_scriptable__(self) -> object:
        """What `torch.jit.script` compiles; it puts that in this module's place in its parent."""
        model = _part(self, _ORIGINAL)
        name = type(model).__qualname__
        warn(
            f"torch.jit.script takes the original of the compiled module {name}, and leaves it in "
            "its place: compile it again where it is to be called from Python."
        )
        return model

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _remade, (_part(self, _ORIGINAL), _part(self, _REMAKE))

    def __copy__(self) -> Any:
        return _again(self, copy.copy(_part(self, _ORIGINAL)))

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        return _again(self, copy.deepcopy(_part(self, _ORIGINAL), memo))


def shield(
    model: torch.nn.Module,
    find: FindCall,
    *,
    forward: FindCall | None = None,
    remake: Remake | None = None,
) -> torch.nn.Module:
    """A module that shares everything with `model` and whose call is `find(model)(model, ...)`.

    forward: finds what `compiled.forward(...)` calls; `find` if not given.
    remake: makes the compiled module of an unpickled or copied model; it is pickled with the
        module. Without it a copy has the same `find`, and a pickle holds the model alone.
    """
    cls = type(model)
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        _ORIGINAL: model,
        _FIND: staticmethod(find),
        _REMAKE: staticmethod(remake) if remake is not None else None,
        "__call__": _call(model, find),
        "forward": _forward(model, forward or find),
    }
    if hasattr(cls, "__del__"):
        namespace["__del__"] = _do_nothing  # the model finalises itself
    made = types.new_class(cls.__name__, (Shield, cls), {}, lambda body: body.update(namespace))
    compiled: torch.nn.Module = object.__new__(made)
    object.__setattr__(compiled, "__dict__", model.__dict__)
    type.__setattr__(made, _END, weakref.ref(compiled, functools.partial(_empty, made)))
    return compiled


def is_shielded(module: object) -> bool:
    """Whether the module was made by `shield`."""
    return issubclass(type(module), Shield)


def original_of(module: torch.nn.Module) -> torch.nn.Module:
    """What a compiled module was made from; any other module itself."""
    while is_shielded(module):
        module = _part(module, _ORIGINAL)
    return module


def find_of(module: torch.nn.Module) -> FindCall:
    """What finds the function that a call of a shielded module calls."""
    find: FindCall = _part(module, _FIND)
    return find


def _call(model: torch.nn.Module, find: FindCall) -> Callable[..., object]:
    """The class's `__call__`."""

    def __call__(self: object, /, *args: object, **kwargs: object) -> Any:
        return find(model)(model, *args, **kwargs)

    interpreted_as(__call__, _call_original)
    return __call__


def _forward(model: torch.nn.Module, find: FindCall) -> Callable[..., object]:
    """The class's `forward`, with the signature of the model's."""

    def forward(self: object, /, *args: object, **kwargs: object) -> object:
        return find(model)(model, *args, **kwargs)

    own = type(model).forward
    made = functools.update_wrapper(forward, own) if callable(own) else forward
    interpreted_as(made, _call_forward_of_original)
    return made


# Of no closures: PyTorch's compiler takes these for the functions that they stand for, cells too.
def _call_original(self: Any, /, *args: Any, **kwargs: Any) -> object:
    return type(self)._braze_original(*args, **kwargs)


def _call_forward_of_original(self: Any, /, *args: object, **kwargs: object) -> object:
    model = type(self)._braze_original
    return type(model).forward(model, *args, **kwargs)


def _empty(made: type, _: object) -> None:
    """Let go of what the class of a compiled module that is gone holds: the class itself, a circle
    as every class, stays until the cycle collector comes."""
    for name in (_ORIGINAL, _FIND, _REMAKE, "__call__", "forward"):
        type.__delattr__(made, name)


def _do_nothing(self: object) -> None:
    """In the place of `__del__`."""


def _again(shielded: object, model: torch.nn.Module) -> torch.nn.Module:
    remake = _part(shielded, _REMAKE)
    if remake is not None:
        made: torch.nn.Module = remake(model)
        return made
    return shield(model, _part(shielded, _FIND))


def _remade(model: torch.nn.Module, remake: Remake | None) -> torch.nn.Module:
    """What a pickle calls to load a compiled module."""
    return model if remake is None else remake(model)


hide_frames(__name__)
hide_from_other_compilers((_empty,))  # by its code, which is another one now
