"""Calls of NumPy's functions and of methods of its arrays, on fake arrays."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.arrays.values import ARRAY_FUNCTIONS, Arrays
from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.state.guard_context import NUMBERS, TENSORS
from braze.compat.numpy.interface import DTYPE_CLASSES, FUNCTION_NAMES, SCALARS, numpy

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def set_up(interpreter: Interpreter) -> Arrays:
    """The arrays of an attempt, with what is done to them."""
    arrays = interpreter.guard_context.arrays = Arrays(interpreter)
    arrays.call = Calls(arrays)
    arrays.operator = arrays.call.operator
    return arrays


@final
class Calls:
    """What calls do, those that it knows; others break the graph."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._interpreter = arrays.interpreter

    def __call__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
        """A function of NumPy's."""
        name = FUNCTION_NAMES.get(function)
        if name is None:
            raise refusal(repr(function))
        if name in _OF_TENSORS and args and type(args[0]) in TENSORS:
            if args[0].requires_grad:
                raise refusal(f"numpy.{name} of a tensor that requires gradients")
            first = (
                args[0] if name in ("array", "asarray") else self._arrays.leaf(_IN_ORDER, args[0])
            )
            args = (self._arrays.of_tensor(first), *args[1:])
        return self._run(name, function, self._settled(args), self._settled(kwargs))

    def method(
        self, name: str, owner: FakeArray, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        """A method of an array's."""
        given = (owner, *self._settled(args))
        call = operator.methodcaller
        return self._run(
            f"ndarray.{name}",
            lambda a, *rest, **keywords: call(name, *rest, **keywords)(a),
            given,
            self._settled(kwargs),
        )

    def operator(self, name: str, *operands: object) -> Any:
        """`left[right]` and operators by their methods' names."""
        args = self._settled(operands)
        return self._run(name, getattr(operator, name), args, {})

    def attribute(self, name: str, owner: FakeArray) -> Any:
        """An attribute that is an array."""
        return self._run(f"ndarray.{name}", operator.attrgetter(name), (owner,), {})

    def converted(self, cls: type, value: FakeArray) -> object:
        """A class of NumPy's numbers, called with an array."""
        return self._run("ndarray.astype", cls, (value,), {})

    def store(self, owner: FakeArray, key: object, value: object) -> None:
        """`owner[key] = value`."""
        self._effect("__setitem__", operator.setitem, self._settled((owner, key, value)))

    def _effect(self, name: str, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self._check(name, (args, {}))
        self._ask(name, function, args, {})
        self._compute(name, find(name), None, args, {})

    def _settled(self, value: object) -> Any:
        """Arguments as NumPy may have them: numbers at hand, containers with what they hold."""
        native = self._interpreter.side_effects.native(value)
        return mapped(native, self._settled_leaf)

    def _settled_leaf(self, value: object) -> object:
        cls = type(value)
        if cls in TENSORS:
            raise refusal("a tensor among the arguments of a function of NumPy's")
        if cls in NUMBERS:
            return self._interpreter.native(NUMBERS[cls], value)
        return value

    def _run(
        self,
        name: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Any:
        arrays = self._arrays
        operands = [leaf for leaf in leaves((args, kwargs)) if type(leaf) is FakeArray]
        compute = find(name)
        constant = not operands and name in MAKING
        if compute is None and name not in _ANSWERED and not constant:
            raise refusal(f"numpy.{name}")
        self._check(name, (args, kwargs))
        found = self._ask(name, function, args, kwargs)
        if name in _ANSWERED:
            return found
        if not operands:
            return self._constant(name, found)
        tensors = self._compute(name, compute, found, args, kwargs)
        return arrays.matched(name, found, tensors, operands)

    def _compute(self, name: str, compute: Any, found: Any, args: Any, kwargs: Any) -> object:
        """The tensors of a call that NumPy takes: what is wrong with them is not the program's."""
        try:
            return compute(self._arrays, found, args, kwargs)
        except ProgramRaised as raised:
            problem: BaseException = raised.exception
        except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
            problem = error
        raise refusal(f"{name}: {type(problem).__name__}: {problem}")

    def _check(self, name: str, given: object) -> None:
        if not self._arrays.traces:
            raise refusal("trace_numpy=False")
        if numpy.geterr() != _ERRORS:
            raise refusal("other settings of numpy.errstate")
        for leaf in leaves(given):
            cls = type(leaf)
            is_dtype = isinstance(leaf, type) and issubclass(leaf, _DTYPE_LIKE)
            if not (is_dtype or cls in _PLAIN or cls in SCALARS or cls in DTYPE_CLASSES):
                raise refusal(f"{name} of a {cls.__qualname__}")

    def _ask(self, name: str, function: Any, args: Any, kwargs: Any) -> object:
        """What NumPy gives for arrays like those."""
        args, kwargs = mapped((args, kwargs), _like)
        try:
            with warnings.catch_warnings(), numpy.errstate(all="ignore"):
                warnings.simplefilter("error")
                return function(*args, **kwargs)
        except Exception as problem:
            raise refusal(f"{name}: {type(problem).__name__}: {problem}") from None

    def _constant(self, name: str, found: object) -> tuple[object, ...] | list[object] | FakeArray:
        if type(found) is tuple or type(found) is list:
            return type(found)([self._constant(name, item) for item in found])
        return self._arrays.constant(found)


_PYTHON_NUMBERS = (bool, int, float, complex)
# Classes that stand for data types, those of which NumPy makes arrays of objects left out.
_DTYPE_LIKE = _PYTHON_NUMBERS if numpy is None else (*_PYTHON_NUMBERS, numpy.generic)
_PLAIN = frozenset({FakeArray, *_PYTHON_NUMBERS, str, type(None), type(Ellipsis)})
# What asks a tensor for the array with its memory.
# An array like a tensor has the order of C.
_IN_ORDER = torch.Tensor.contiguous
_OF_TENSORS = frozenset("array asarray ones_like zeros_like full_like empty_like".split())
# What is known of arrays like those.
_ANSWERED = frozenset(
    "ndim shape size iscomplexobj isrealobj result_type can_cast isscalar common_type issubdtype "
    "isdtype promote_types".split()
)
# What makes arrays of constants.
MAKING = frozenset(
    "array asarray asanyarray ascontiguousarray arange zeros ones empty full eye identity linspace "
    "logspace geomspace tri indices diag diagflat meshgrid bartlett blackman hamming hanning "
    "kaiser tril_indices triu_indices diag_indices fft.fftfreq fft.rfftfreq vander".split()
)


def _like(value: object) -> object:
    return value.like if type(value) is FakeArray else value


def leaves(value: Any) -> Iterator[object]:
    """What containers and slices hold, at any depth."""
    cls = type(value)
    if cls is tuple or cls is list:
        for item in value:
            yield from leaves(item)
    elif cls is dict:
        for item in value.values():
            yield from leaves(item)
    elif cls is slice:
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def mapped(value: Any, function: Callable[[object], object]) -> Any:
    """The same containers and slices with other leaves."""
    cls = type(value)
    if cls is tuple or cls is list:
        return cls([mapped(item, function) for item in value])
    if cls is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    if cls is slice:
        return slice(*[function(part) for part in (value.start, value.stop, value.step)])
    return function(value)


def find(name: str) -> object:
    """What computes the tensors of a function, a method or an operator; None if nothing does."""
    found = ARRAY_FUNCTIONS.get(name)
    if found is None and name.startswith("ndarray."):
        found = ARRAY_FUNCTIONS.get(name[8:])
    return found
