"""What a frame sees of its own effects before the graph has run: of log lines, of a list that
takes its own items, of gradients added up by a user's backend, of hooks on saved tensors."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

import braze

_BACKENDS = ("eager", "aot_eager", "braze")


class _Noting(logging.Handler):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log.append(record.getMessage())


class _Refusing:
    level = 0

    def handle(self, record: logging.LogRecord) -> None:
        raise ValueError(record.getMessage())


def _filter(log: list[str]) -> Any:
    return lambda record: log.append("filtered") or False


def _attach(kind: str, logger: logging.Logger, log: list[str]) -> None:
    if kind == "handler":
        logger.addHandler(_Noting(log))
    elif kind == "parent":
        logging.getLogger(logger.name.rpartition(".")[0]).addHandler(_Noting(log))
    elif kind == "filter":
        logger.addFilter(_filter(log))
    elif kind == "filter of a handler":
        handler = logging.StreamHandler()
        handler.addFilter(_filter(log))
        logger.addHandler(handler)
    elif kind == "raises":
        logger.addHandler(_Refusing())  # type: ignore[arg-type]


def _logged(kind: str, when: int, compiles: bool) -> Any:
    log: list[str] = []
    logger = logging.getLogger(f"tests.effects{kind}{when}{compiles}.inner")

    def program(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            logger.error("line")
        except ValueError as error:
            log.append(str(error))
        return [*log], y * 2

    if compiles:
        program = braze.compile(program, backend="eager")
    found = []
    for call in range(3):
        if call == when:
            _attach(kind, logger, log)
        found.append(program(torch.ones(2))[0])
    return found


@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize(
    "kind", ["handler", "parent", "filter", "filter of a handler", "raises", "none"]
)
def test_log_lines_come_where_their_handlers_are_read(kind: str, when: int) -> None:
    assert _logged(kind, when, True) == _logged(kind, when, False)


@pytest.mark.parametrize("cls", [list, deque])
@pytest.mark.parametrize("grow", ["box.extend(box)", "box += box"])
def test_container_takes_its_own_items(cls: Any, grow: str) -> None:
    found = []
    for compiles in (False, True):
        space: dict[str, Any] = {"box": cls([3, 1, 1])}
        source = f"def program(x):\n    global box\n    {grow}\n    return len(box), x + len(box)"
        exec(source, space)
        program = braze.compile(space["program"]) if compiles else space["program"]
        calls = [program(torch.ones(2)) for _ in range(2)]
        found.append([(count, y.tolist()) for count, y in calls] + [list(space["box"])])
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("retains", [False, True])
def test_gradients_add_up_beside_results_with_gradients(backend: str, retains: bool) -> None:
    layer = nn.Embedding(5, 3)
    index = torch.tensor(0)
    x = torch.ones(2, 3, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        layer(index).sum().backward()
        return torch.softmax(x if retains else x.detach(), 1)

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for call in range(1, 4):
        compiled(x)
        assert layer.weight.grad is not None
        assert layer.weight.grad[0].tolist() == [call] * 3


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("early", [False, True])
def test_backward_in_the_frame_serves_hooks_on_saved_tensors(backend: str, early: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(leaf.square().sum(), leaf)[0]

    compiled = braze.compile(program, backend=backend)
    x = torch.arange(3.0)
    if early:
        assert torch.equal(compiled(x), program(x))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        assert torch.equal(compiled(x), program(x))
        assert torch.equal(compiled(x), x * 4)
    assert torch.equal(compiled(x), x * 2)


@pytest.mark.parametrize("warns", [False, True])
@pytest.mark.parametrize("sets", [(False, False), (True, False), (True, True)])
def test_compiling_restores_both_deterministic_flags(sets: tuple[bool, bool], warns: bool) -> None:
    def flags() -> tuple[bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    def program(x: torch.Tensor) -> Any:
        torch.use_deterministic_algorithms(sets[0], warn_only=sets[1])
        return flags(), x + 1

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    try:
        for _ in range(2):
            torch.use_deterministic_algorithms(True, warn_only=warns)
            assert compiled(torch.ones(2))[0] == sets
            assert flags() == sets
    finally:
        torch.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.use_deterministic_algorithms(True, warn_only=warns)
        try:
            assert braze.explain(program)(torch.ones(2)).graph_count == 1
        finally:
            torch.use_deterministic_algorithms(False)
