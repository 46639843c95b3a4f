"""Python's `random`: what a generator from outside is asked is asked at each call, before the graph
runs, and a float that it gives is a symbolic float. So the generator's state goes on as in eager,
and another number is no other program.

Methods that give floats (and `seed`) are asked as a whole, and so are those that give an integer:
it is a symbol, between bounds, that is known when the program runs; a choice of one of a few
numbers is such a number. Several numbers that are taken of a few (`sample`, `choices`), or put in
another order (`shuffle` of a list that the frame made), are items of one input. What gives other
items of a sequence, or shuffles one, breaks the graph: it is asked for real. A generator made in
the frame is the frame's business.

`numpy.random` likewise, where a method's arguments are numbers and shapes: an array that it gives
is an input of the graph. A generator of NumPy's that the frame made breaks the graph.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.arrays.fake_array import refusal
from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.handler_registry import CALL_HANDLERS, answer, answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.attribute_load import instance_dict, set_instance_entry
from braze.capture.state.guard_context import NUMBERS
from braze.compat.numpy.interface import (
    RANDOM_METHODS,
    RANDOM_SEED,
    RANDOM_STATE,
    TENSOR_DTYPES,
    numpy,
)
from braze.compat.python.stdlib import RANDOM_CORE
from braze.compat.torch.aten import aten
from braze.ir.captured.frame import Draw
from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import ObjectSource
from braze.ir.types import TensorType
from braze.shapes.symbolic import program_value
from braze.tracing.symbolic.symbolic_float import NUMBER, SymbolicFloat
from braze.tracing.symbolic.unbacked_sizes import integer_of

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.tracing.fake_tensor import TracedTensor

# They read nothing of a generator but its state in C, through `random()`. (`gauss` keeps a number
# in an attribute for its next call.)
_GIVE_FLOATS = frozenset(
    {
        RANDOM_CORE.random,
        random.Random.uniform,
        random.Random.triangular,
        random.Random.gauss,
        random.Random.normalvariate,
        random.Random.lognormvariate,
        random.Random.expovariate,
        random.Random.gammavariate,
        random.Random.betavariate,
        random.Random.paretovariate,
        random.Random.weibullvariate,
        random.Random.vonmisesvariate,
        random.Random.choice,
    }
)
# What those methods call of their generator.
_CALLED = ("random", "normalvariate", "gammavariate", "getrandbits", "_randbelow", "randrange")
_NUMBERS = (int, float)
_INTEGER = TensorType(torch.int64, (), (), torch.device("cpu"))
# The arguments are integers -> the least and the greatest number that a method gives for them.
_GIVE_INTEGERS: dict[Any, Callable[..., tuple[int, int]]] = {
    random.Random.randint: lambda least, greatest: (least, greatest),
    random.Random.randrange: lambda start, stop=None: (
        (0, start - 1) if stop is None else (start, stop - 1)
    ),
    RANDOM_CORE.getrandbits: lambda bits: (0, (1 << bits) - 1),
    random.Random.choice: lambda numbers: (min(numbers), max(numbers)),
}
_MOST = 1 << 48
_MOST_CHOICES = 1 << 10
# Each of several numbers is a symbol of its own.
_MOST_NUMBERS = 64
_GIVE_SEVERAL = frozenset({random.Random.sample, random.Random.choices})


def _draw(function: Any) -> Callable[..., object]:
    def draw(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        if not args or id(args[0]) not in interpreter.guard_context.known:
            if type(function) is types.FunctionType:
                return interpreter.call_python(function, args, kwargs)
            return call_natively(interpreter, function, args, kwargs)
        if function is random.Random.shuffle:
            return _shuffle(interpreter, args, kwargs)
        if function in _GIVE_SEVERAL and len(args) > 1:
            first, rest = _with_constants(interpreter, args[:2]), args[2:]
            return _drawn_several(interpreter, function, (*first, *rest), kwargs)
        if function is random.Random.choice:
            args = _with_constants(interpreter, args)
        given = _arguments(function, args[1:], kwargs)
        bounds = _bounds(function, args[1:], kwargs) if given is None else None
        is_plain = _is_plain(interpreter, args[0], function)
        if bounds is not None and is_plain:
            return drawn_integer(interpreter, args[0], function, args[1:], bounds)
        if given is None or not is_plain:
            raise BreakRequested("unseen-callable", f"random.{function.__name__}")
        return drawn_float(interpreter, args[0], function, given)

    return draw


def _arguments(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, object]
) -> tuple[object, ...] | None:
    """The arguments of a method that gives a float for them; None otherwise."""
    if function not in _GIVE_FLOATS or kwargs:
        return None
    if function is random.Random.choice:
        return args if len(args) == 1 and args[0] and _are_all(args[0], float) else None
    if not all(type(value) in _NUMBERS for value in args):
        return None
    try:
        example = function(random.Random(0), *args)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return args if type(example) is float else None


def _bounds(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, object]
) -> tuple[int, int] | None:
    """The least and the greatest integer that a method gives for its arguments; None where it is
    none that gives integers, or refuses them, or there is but one."""
    limits = _GIVE_INTEGERS.get(function)
    given = args[0] if function is random.Random.choice and len(args) == 1 else args
    if limits is None or kwargs or not _are_all(given, int):
        return None
    try:
        function(random.Random(0), *args)
        least, greatest = limits(*args)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return (least, greatest) if -_MOST < least < greatest < _MOST else None


def _with_constants(interpreter: Interpreter, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a choice; a few numbers that it chooses from as the tuple that they are."""
    if len(args) != 2 or type(args[1]) not in (list, tuple, range):
        return args
    generator, sequence = args
    if len(sequence) > _MOST_CHOICES or not all(type(item) in _NUMBERS for item in sequence):
        return args
    numbers = sequence if type(sequence) is range else interpreter.side_effects.contents(sequence)
    return generator, tuple(numbers)


def _are_all(values: object, kind: type) -> bool:
    return type(values) is tuple and all(type(value) is kind for value in values)


def _is_plain(interpreter: Interpreter, generator: Any, function: object) -> bool:
    """Whether a generator's methods are those of its class, which is the standard one. Guarded.
    `gauss` wants its attribute, too, as it was before the frame."""
    guard_context = interpreter.guard_context
    space = instance_dict(generator)
    if type(generator) is not random.Random or space is None:
        return False
    is_gauss = function is random.Random.gauss
    if is_gauss and interpreter.side_effects.written(space, "gauss_next") is not ABSENT:
        return False
    for name in _CALLED:
        if name in space or guard_context.lookup(random.Random, name) is ABSENT:
            return False
        guard_context.guard_lacks_attribute(space, generator, name)
    return True


def drawn_float(
    interpreter: Interpreter, generator: object, function: object, args: tuple[object, ...]
) -> SymbolicFloat:
    """The float that is drawn at each call."""
    tensor = drawn_tensor(interpreter, generator, function, args, NUMBER)
    interpreter.tracer.has_numbers = True
    return SymbolicFloat(interpreter.tracer, tensor)


def drawn_integer(
    interpreter: Interpreter,
    generator: object,
    function: Any,
    args: tuple[object, ...],
    bounds: tuple[int, int],
) -> object:
    """The integer that is drawn at each call."""
    tensor = drawn_tensor(interpreter, generator, function, args, _INTEGER)
    with interpreter.tracer:
        made = integer_of(interpreter.tracer, tensor, bounds, f"random.{function.__name__}()")
    return program_value(made)


def _shuffle(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
    """Of a list that the frame made: others would have other contents at each call."""
    if (
        len(args) != 2
        or kwargs
        or type(args[1]) is not list
        or id(args[1]) in interpreter.guard_context.known
    ):
        raise BreakRequested("unseen-callable", "random.shuffle")
    generator, numbers = args
    if len(numbers) > 1:  # else nothing is drawn
        numbers[:] = _drawn_several(interpreter, _shuffled, (generator, tuple(numbers)), {})


def _shuffled(generator: random.Random, numbers: tuple[object, ...]) -> list[object]:
    made = list(numbers)
    generator.shuffle(made)
    return made


def _drawn_several(
    interpreter: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[object]:
    """What is taken of the numbers `args[1]`; a break where these are not few, or of two kinds."""
    generator, numbers, *rest = args
    called = functools.partial(function, **kwargs) if kwargs else function
    kind = next((kind for kind in _NUMBERS if _are_all(tuple(numbers), kind)), None)
    constant = all(_is_number(value) for value in (*rest, *kwargs.values()))
    count = _count(called, numbers, rest) if kind is not None and constant else 0
    least, greatest = (min(numbers), max(numbers)) if count else (0, 0)
    is_drawn = -_MOST < least < greatest < _MOST and 0 < count <= _MOST_NUMBERS
    if not is_drawn or not _is_plain(interpreter, generator, function):
        raise BreakRequested("unseen-callable", f"random.{_name(function)}")
    dtype = torch.int64 if kind is int else torch.float64
    type_of_all = TensorType(dtype, (count,), (1,), _INTEGER.device)
    given = (tuple(numbers), *rest)
    tensor = drawn_tensor(interpreter, generator, called, given, type_of_all)
    tracer = interpreter.tracer
    with tracer:
        items = [aten.select.int(tensor, 0, index) for index in range(count)]
        if kind is int:
            name = f"random.{_name(function)}()"
            bounds = least, greatest
            return [program_value(integer_of(tracer, item, bounds, name)) for item in items]
    tracer.has_numbers = True
    return [SymbolicFloat(tracer, item) for item in items]


def _is_number(value: object) -> bool:
    return (
        value is None
        or type(value) in _NUMBERS
        or (type(value) is tuple and all(type(item) in _NUMBERS for item in value))
    )


def _count(called: Any, numbers: tuple[Any, ...], rest: list[Any]) -> int:
    """How many numbers are taken; 0 where that is refused."""
    try:
        return len(called(random.Random(0), tuple(numbers), *rest))
    except (TypeError, ValueError, ArithmeticError):
        return 0


def drawn_tensor(
    interpreter: Interpreter,
    generator: object,
    function: Any,
    args: tuple[object, ...],
    kind: TensorType,
) -> TracedTensor:
    """What holds a number that is drawn at each call. The entry is for this one generator."""
    guard_context, tracer = interpreter.guard_context, interpreter.tracer
    if not tracer.gives_numbers or interpreter.transforms:
        raise BreakRequested("unseen-callable", f"random.{_name(function)}")
    guard_context.guard(guard_context.source_of(generator), GuardKind.ID_MATCH, generator)
    tracer.origin = interpreter.origin(f"random.{_name(function)}")
    tensor = tracer.add_input_of_type(kind)
    name = f"a number of random.{_name(function)}()"
    guard_context.input_sources.append(ObjectSource(name, _placeholder()))
    interpreter.draws.append((Draw(generator, function, args, -1), tensor))
    return tensor


def _name(function: Any) -> str:
    return str(getattr(function, "func", function).__name__.strip("_"))


def _placeholder() -> object:
    """What the graph's input is before the number is drawn."""
    return object()


def placed_draws(interpreter: Interpreter, inputs: Sequence[int]) -> tuple[Draw, ...]:
    """Everything drawn, with its places among the graph's inputs, which are given by number."""
    places = {number: place for place, number in enumerate(inputs)}
    return tuple(
        [
            draw
            if tensor is None
            else dataclasses.replace(draw, input=places.get(tensor.place.input_index, -1))
            for draw, tensor in interpreter.draws
        ]
    )


for _function in vars(random.Random).values():
    is_method = type(_function) is types.FunctionType and _function is not random.Random.seed
    if is_method and not _function.__name__.startswith("_"):
        answers(_function)(_draw(_function))
for _function in (RANDOM_CORE.random, RANDOM_CORE.getrandbits):
    answers(_function)(_draw(_function))


@answers(random.Random.seed)
def seed(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Done before the graph runs, in order with what is drawn."""
    guard_context = interpreter.guard_context
    if not args or id(args[0]) not in guard_context.known:
        function: Any = random.Random.seed
        return interpreter.call_python(function, args, kwargs)
    generator, rest = args[0], args[1:]
    plain = type(generator) is random.Random and not kwargs and len(rest) <= 1
    if not plain or not all(type(value) in (int, type(None)) for value in rest):
        raise BreakRequested("unseen-callable", "random.seed")
    guard_context.guard(guard_context.source_of(generator), GuardKind.ID_MATCH, generator)
    interpreter.draws.append((Draw(generator, RANDOM_CORE.seed, rest, -1), None))
    set_instance_entry(interpreter, generator, "gauss_next", None)
    return None


# --- numpy.random --------------------------------------------------------------------------------

_PLAIN_ARGUMENTS = (int, float, bool, type(None), str, type)


def _draws(name: str, method: Any) -> None:
    @answers(method)
    def draw(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if not args or id(args[0]) not in interpreter.guard_context.known:
            raise refusal(f"{name}() of a generator that is made here")
        generator, *rest = args
        if type(generator) is not RANDOM_STATE or not interpreter.arrays.traces:
            raise refusal(f"random.{name}")
        given = tuple([_numpys_argument(interpreter, name, value) for value in rest])
        named = {key: _numpys_argument(interpreter, name, value) for key, value in kwargs.items()}
        called = functools.partial(method, **named) if named else method
        return _drawn_by_numpy(interpreter, name, generator, called, given)


def call_random_function(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A function of the kind that `numpy.random` has: compiled from Cython."""
    handler = CALL_HANDLERS.get(function)
    if handler is None:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise BreakRequested("unseen-callable", str(name))
    return answer(interpreter, function, handler, args, kwargs)


def _numpys_argument(interpreter: Interpreter, name: str, value: Any) -> object:
    """An argument as NumPy gets it: a size is a number then."""
    value = interpreter.side_effects.native(value)
    if type(value) in (list, tuple, torch.Size):
        return tuple([_numpys_argument(interpreter, name, item) for item in value])
    if type(value) in NUMBERS:
        return interpreter.native(NUMBERS[type(value)], value)
    if type(value) not in _PLAIN_ARGUMENTS:
        raise refusal(f"random.{name} of a {type(value).__name__}")
    return value


def _drawn_by_numpy(
    interpreter: Interpreter, name: str, generator: object, called: Any, args: tuple[Any, ...]
) -> object:
    """What a generator gives at each call, by what a new one gives."""
    try:
        example = called(RANDOM_STATE(0), *args)
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal(f"random.{name}: {error}") from None
    if type(example) is float:
        return drawn_float(interpreter, generator, called, args)
    if type(example) is int and name == "randint" and called is RANDOM_METHODS[name]:
        least, end = (0, *args) if len(args) == 1 else args
        if type(least) is type(end) is int and end - least > 1:
            return drawn_integer(interpreter, generator, called, args, (least, end - 1))
    dtype = TENSOR_DTYPES.get(getattr(example, "dtype", None))
    if type(example) is not numpy.ndarray or dtype is None or not example.flags.c_contiguous:
        raise refusal(f"random.{name}, which gives a {type(example).__name__}")
    strides = tuple([step // example.itemsize for step in example.strides])
    kind = TensorType(dtype, example.shape, strides, torch.device("cpu"))
    tensor = drawn_tensor(interpreter, generator, called, args, kind)
    return interpreter.arrays.wrapped(tensor)


for _method_name, _method in RANDOM_METHODS.items():
    _draws(_method_name, _method)


if RANDOM_SEED is not None:

    @answers(RANDOM_SEED)
    def seed_numpy(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """`numpy.random.seed`: done before the graph runs, in order with what is drawn."""
        if len(args) != 1 or kwargs or type(args[0]) is not int:
            raise refusal("random.seed")
        generator = numpy.random.mtrand._rand
        interpreter.draws.append((Draw(generator, _seeded_numpy, args, -1), None))


def _seeded_numpy(_: object, number: int) -> None:
    RANDOM_SEED(number)
