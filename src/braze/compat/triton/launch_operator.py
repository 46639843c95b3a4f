"""The launch of a program's Triton kernel as an operator: what a graph calls.

    add_kernel[grid](x, y[1:], out, n, BLOCK=64)

    braze::add_kernel_0(Tensor x, Tensor y, Tensor(a!) out, SymInt n, SymInt[] grid,
                        SymInt[] layout) -> ()

One operator a kernel object and form of its arguments. It is given each piece of memory once, whole
(`y`, not `y[1:]`); `layout` says where in it the tensors are that the kernel is launched on. What
is constant in the launch (`BLOCK=64`, strings, dtypes, functions) is part of the operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.registered_ops import define_operator
from braze.compat.triton.kernels import TritonKernel, match_choice
from braze.frozen import frozen
from braze.locks import make_lock


@final
@frozen
class TensorArgument:
    """A tensor of `rank` dimensions in the operator's tensor number `memory`. name: of the kernel's
    parameter. is_whole: it is that tensor itself, and takes one with the strides that it has."""

    name: str
    memory: int
    rank: int
    is_whole: bool


@final
@frozen
class NumberArgument:
    """An integer or float that calls may differ in, the operator's number `number`."""

    name: str
    number: int
    is_float: bool = False


@final
@frozen
class ConstantArgument:
    """A value that is part of the operator. Compared by identity, numbers and text by value."""

    value: Any

    def key(self) -> tuple[type, Any]:
        """What tells it from others."""
        plain = type(self.value) in (int, float, bool, str, type(None))
        return type(self.value), repr(self.value) if plain else id(self.value)


@final
@frozen
class TupleArgument:
    """A tuple of arguments."""

    items: tuple[LaunchArgument, ...]


LaunchArgument: TypeAlias = TensorArgument | NumberArgument | ConstantArgument | TupleArgument


@final
@frozen(eq=False)
class LaunchForm:
    """The form of a launch.

    positional, keywords: what the kernel is given, options (`num_warps`) among the keywords.
    memories: for each tensor of the operator a name, and whether the kernel writes to it.
    choices: parameters that configurations of an autotuner set, one dict for each three of the
        operator's grid; () where one grid serves all.
    grid_rank: of how many numbers the grid is.
    """

    kernel: TritonKernel
    positional: tuple[LaunchArgument, ...]
    keywords: tuple[tuple[str, LaunchArgument], ...]
    memories: tuple[tuple[str, bool], ...]
    choices: tuple[dict[str, Any], ...]
    grid_rank: int

    def key(self) -> tuple[Any, ...]:
        """Launches of one key have one operator."""
        arguments = tuple([_key(a) for a in self.positional])
        keywords = tuple([(name, _key(a)) for name, a in self.keywords])
        choices = tuple([repr(sorted(c.items(), key=repr)) for c in self.choices])
        kernel = id(self.kernel.launched)
        return kernel, arguments, keywords, self.memories, choices, self.grid_rank


def launch_operator(launch: LaunchForm) -> torch._ops.OpOverload:
    """The operator of a launch, `(*tensors, *numbers, grid, layout) -> ()`."""
    key = launch.key()
    with _DEFINING:
        known = _OPERATORS.get(key)
        if known is None:
            number = len(_OPERATORS)
            name = f"{re.sub(r'[^0-9A-Za-z_]', '_', launch.kernel.name)}_{number}"
            made = define_operator(name, _schema(launch), _launcher(launch))
            known = _OPERATORS[key] = made, launch
        return known[0]


def launch_function(launch: LaunchForm) -> Callable[..., None]:
    """The launch as graphs of user backends call it: `(tensors, numbers, grid)`, where the tensors
    are those that the program passed."""

    def launch_kernel(
        tensors: Sequence[Any], numbers: Sequence[object], grid: Sequence[int]
    ) -> None:
        given = iter(tensors)
        _start(launch, lambda _: next(given), numbers, grid)

    launch_kernel.__name__ = launch_kernel.__qualname__ = f"launch_{launch.kernel.name}"
    return launch_kernel


def tensors_in(argument: LaunchArgument) -> Iterator[TensorArgument]:
    """The tensors of an argument, in order."""
    if isinstance(argument, TensorArgument):
        yield argument
    elif isinstance(argument, TupleArgument):
        for item in argument.items:
            yield from tensors_in(item)


# --- private -------------------------------------------------------------------------------------

_DEFINING = make_lock()
# A launch is kept with its operator: the key has the identities of what it holds.
_OPERATORS: dict[tuple[Any, ...], tuple[torch._ops.OpOverload, LaunchForm]] = {}


def _key(argument: LaunchArgument) -> object:
    if isinstance(argument, ConstantArgument):
        return argument.key()
    if isinstance(argument, TupleArgument):
        return "tuple", tuple(map(_key, argument.items))
    return argument


def _numbers_in(argument: LaunchArgument) -> Iterator[NumberArgument]:
    if isinstance(argument, NumberArgument):
        yield argument
    elif isinstance(argument, TupleArgument):
        for item in argument.items:
            yield from _numbers_in(item)


def _all(launch: LaunchForm) -> list[LaunchArgument]:
    return [*launch.positional, *[argument for _, argument in launch.keywords]]


def _schema(launch: LaunchForm) -> str:
    taken: set[str] = {"grid", "layout"}
    parts, letters = [], iter("abcdefghijklmnopqrstuvwxyz" * 8)
    for number, (name, is_written) in enumerate(launch.memories):
        kind = f"Tensor({next(letters)}{number}!)" if is_written else "Tensor"
        parts.append(f"{kind} {_free(name, taken)}")
    numbers = [n for argument in _all(launch) for n in _numbers_in(argument)]
    for found in sorted(numbers, key=lambda n: n.number):
        kind = "float" if found.is_float else "SymInt"
        parts.append(f"{kind} {_free(found.name, taken)}")
    return f"({', '.join([*parts, 'SymInt[] grid', 'SymInt[] layout'])}) -> ()"


def _free(name: str, taken: set[str]) -> str:
    """A name that a schema can have, and has not."""
    if name in taken or name in _RESERVED or not name.isascii():
        name = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{len(taken)}"
    taken.add(name)
    return name


_RESERVED = frozenset(
    "Tensor int float bool str complex number Device Layout Stream Generator Scalar ScalarType "
    "MemoryFormat Dimname SymInt Future Any None True False".split()
)


def _launcher(launch: LaunchForm) -> Callable[..., None]:
    count = len(launch.memories)
    tensors = [tensor for argument in _all(launch) for tensor in tensors_in(argument)]
    starts, end = [], 0
    for tensor in tensors:
        starts.append(end)
        end += 2 * tensor.rank + 1

    def run(*values: Any) -> None:
        memories: Sequence[torch.Tensor] = values[:count]
        numbers, (grid, layout) = values[count:-2], values[-2:]
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        places = iter(starts)

        def placed(tensor: TensorArgument) -> torch.Tensor:
            memory, start, rank = memories[tensor.memory], next(places), tensor.rank
            shape, stride = layout[start : start + rank], layout[start + rank : start + 2 * rank]
            if not tensor.is_whole:
                offset = memory.storage_offset() + layout[start + 2 * rank]
                return memory.as_strided(shape, stride, offset)
            if memory.stride() == tuple(stride):
                return memory
            copy = memory.new_empty_strided(shape, stride).copy_(memory)
            if launch.memories[tensor.memory][1]:
                copies.append((memory, copy))
            return copy

        with torch.no_grad():
            _start(launch, placed, numbers, grid)
            for memory, copy in copies:
                memory.copy_(copy)

    return run


def _start(
    launch: LaunchForm,
    tensor: Callable[[TensorArgument], torch.Tensor],
    numbers: Sequence[object],
    grid: Sequence[int],
) -> None:
    """Launch the kernel. tensor: gives the tensors, asked in the order of the arguments."""

    def value(argument: LaunchArgument) -> object:
        if isinstance(argument, TensorArgument):
            return tensor(argument)
        if isinstance(argument, NumberArgument):
            return numbers[argument.number]
        if isinstance(argument, TupleArgument):
            return tuple(map(value, argument.items))
        return argument.value

    positional = [value(argument) for argument in launch.positional]
    keywords = {name: value(argument) for name, argument in launch.keywords}
    device = next((x.device for x in positional if isinstance(x, torch.Tensor)), None)
    function = launch.kernel.launched[_grid(launch, grid)]
    if device is not None and device.type == "cuda" and device.index is not None:
        with torch.cuda.device(device):  # Triton starts kernels on the current one
            function(*positional, **keywords)
    else:
        function(*positional, **keywords)


def _grid(launch: LaunchForm, numbers: Sequence[int]) -> object:
    rank = launch.grid_rank
    if not launch.choices:
        return tuple(numbers)

    def grid(parameters: dict[str, object]) -> tuple[int, ...]:
        number = match_choice(launch.choices, parameters)
        if number < 0:
            raise RuntimeError(
                f"{launch.kernel.name} is launched with a configuration that its autotuner had not "
                "when it was compiled"
            )
        return tuple(numbers[number * rank : (number + 1) * rank])

    return grid
