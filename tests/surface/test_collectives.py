"""What torch.distributed communicates in compiled code happens, once, in order.

A world of one process on gloo: results are what they are in eager, and the group counts what it is
asked for. The functions are generated from the modules; arguments are made by the names of
parameters.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

import braze
from braze.capture.handlers.distributed import communicating_functions
from braze.trace import Journal

# They end the world, wait for a person or for another process, or make groups.
LEFT_ALONE = frozenset(
    "breakpoint destroy_process_group init_process_group new_group new_subgroups "
    "new_subgroups_by_enumeration shrink_group split_group record_comm "
    "recv irecv send isend recv_object_list send_object_list batch_isend_irecv "
    "monitored_barrier isend_irecv batch_p2p_ops".split()
)


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = Path(tmp_path_factory.mktemp("store")) / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _communications() -> int:
    """How many collectives the group has been asked for."""
    return int(dist.group.WORLD._get_sequence_number_for_group())


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


# Makers of arguments, by the names of parameters.
ARGUMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dim": lambda x: 0,
    "dst": lambda x: 0,
    "gather_dim": lambda x: 0,
    "gather_list": lambda x: [_empty(x)],
    "group": lambda x: dist.group.WORLD,
    "in_tensor": lambda x: x * 3,
    "input": lambda x: x * 3,
    "input_list": lambda x: [x * 3],
    "input_split_sizes": lambda x: None,
    "input_tensor": lambda x: x * 3,
    "input_tensor_list": lambda x: [x * 3],
    "inputs": lambda x: [x * 3],
    "obj": lambda x: "one",
    "object_gather_list": lambda x: [None],
    "object_list": lambda x: ["one"],
    "output": _empty,
    "output_split_sizes": lambda x: None,
    "output_tensor": _empty,
    "output_tensor_list": lambda x: [_empty(x)],
    "output_tensor_lists": lambda x: [[_empty(x)]],
    "reduceOp": lambda x: "sum",
    "reduce_op": lambda x: "sum",
    "scatter_dim": lambda x: 0,
    "scatter_list": lambda x: [x * 3],
    "scatter_object_input_list": lambda x: ["one"],
    "scatter_object_output_list": lambda x: [None],
    "self": lambda x: x * 3,
    "shard_dim": lambda x: 0,
    "src": lambda x: 0,
    "tag": lambda x: "",
    "tensor": lambda x: x * 3,
    "tensor_list": lambda x: [_empty(x)],
    "tensors": lambda x: [x * 3],
}


def collectives() -> dict[str, Any]:
    """Functions that communicate, by the names of modules and their own."""
    found = {
        f"dist.{name}": function
        for function, name in communicating_functions().items()
        if name not in LEFT_ALONE
    }
    for name, value in vars(functional).items():
        own = getattr(value, "__module__", "") == functional.__name__
        if type(value) is types.FunctionType and own and name[0] != "_" and name not in LEFT_ALONE:
            found[f"functional.{name}"] = value
    return found


def arguments(function: Any, x: torch.Tensor, asynchronous: bool) -> dict[str, Any] | None:
    """Arguments by name; None where a parameter is not known here."""
    made: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "async_op" and asynchronous:
            made[name] = True
        elif parameter.default is not parameter.empty and name not in (
            "scatter_list",
            "gather_list",
        ):
            continue
        elif name not in ARGUMENTS:
            return None
        else:
            made[name] = ARGUMENTS[name](x)
    if asynchronous and "async_op" not in made:
        return None
    return made


def program(function: Any, asynchronous: bool) -> Callable[[torch.Tensor], Any]:
    """A program that makes tensors, communicates them, and computes with all of them."""

    def run(x: torch.Tensor) -> Any:
        given = arguments(function, x, asynchronous)
        result = function(**given)
        if asynchronous:
            result.wait()
            result = None
        return x + 1, given, plain(result)

    return run


def plain(value: Any) -> Any:
    """A result that can be compared: what is under way is awaited."""
    if isinstance(value, functional.AsyncCollectiveTensor):
        return value.wait()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.tolist()]
    if isinstance(value, dict):
        return [tensors(item) for item in value.values()]
    if isinstance(value, (list, tuple)):
        return [tensors(item) for item in value]
    return [value] if isinstance(value, (str, int, float, type(None))) else [type(value)]


def outcome(run: Callable[[torch.Tensor], Any]) -> tuple[Any, int]:
    """What a program gives or raises, with its argument afterwards, and how often it
    communicates."""
    x = torch.arange(4.0)
    before = _communications()
    try:
        found: Any = tensors(run(x))
    except Exception as error:
        found = type(error)
    return (found, tensors(x)), _communications() - before


def cases() -> Iterator[Any]:
    for name, function in collectives().items():
        for asynchronous in (False, True):
            if arguments(function, torch.ones(4), asynchronous) is not None:
                yield pytest.param(function, asynchronous, id=f"{name}{' async' * asynchronous}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("function", "asynchronous"), list(cases()))
def test_communicates_as_in_eager(function: Any, asynchronous: bool, journal: Journal) -> None:
    run = program(function, asynchronous)
    expected, count = outcome(run)
    compiled = braze.compile(run)
    for _ in range(3):
        assert outcome(compiled) == (expected, count)
    if not (isinstance(expected[0], type) and issubclass(expected[0], Exception)):
        assert any(record.outcome == "graph" for record in journal.records())


@pytest.mark.filterwarnings("ignore")
def test_the_sweep_is_wide() -> None:
    """Most functions are called with arguments that they take."""
    found = [case.values for case in cases()]
    ran = [pair for pair in found if not isinstance(outcome(program(*pair))[0][0], type)]
    assert len(collectives()) >= 40 and len(found) >= 45 and len(ran) >= 35


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "barrier", "all_gather_into_tensor"])
def test_fullgraph_says_that_it_communicates(name: str) -> None:
    run = program(getattr(dist, name), False)
    with pytest.raises(braze.errors.BrazeError, match=f"communicates.*{name}"):
        braze.compile(run, fullgraph=True)(torch.ones(4))


@pytest.mark.parametrize("rank", [0, 3])
def test_questions_follow_the_world(rank: int) -> None:
    def place(x: torch.Tensor) -> Any:
        if not dist.is_initialized():
            return x - 1, None
        return x * dist.get_world_size() + dist.get_rank(), dist.get_backend()

    compiled = braze.compile(place)
    x = torch.ones(3)

    def compare() -> None:
        expected, got = place(x), compiled(x)
        assert torch.equal(expected[0], got[0]) and expected[1] == got[1]

    compare()
    group = distributed_c10d._world._default_pg
    distributed_c10d._world._default_pg = None
    try:
        compare()
        compare()
    finally:
        distributed_c10d._world._default_pg = group
    compare()


@pytest.mark.parametrize("unused", [False, True])
def test_a_functional_collective_is_part_of_the_graph(unused: bool, journal: Journal) -> None:
    operators = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name

    def run(x: torch.Tensor) -> torch.Tensor:
        begun = operators.all_reduce(x * 2, "sum", name)
        done = operators.wait_tensor(begun)
        return x.sin() if unused else done + 1

    expected, count = outcome(lambda x: (run(x),))
    assert count == 1
    compiled = braze.compile(run, fullgraph=True)
    for _ in range(3):
        assert outcome(lambda x: (compiled(x),)) == (expected, count)


def test_a_wait_gives_its_operand() -> None:
    operators = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name

    def run(x: torch.Tensor) -> Any:
        begun = operators.all_reduce(x * 2, "sum", name)
        done = operators.wait_tensor(begun)
        done.add_(1)
        return begun, done

    compiled = braze.compile(run, fullgraph=True)
    x = torch.arange(4.0)
    begun, done = compiled(x)
    assert torch.equal(begun, run(x)[0]) and torch.equal(done, run(x)[1])
    assert begun.data_ptr() == done.data_ptr()
