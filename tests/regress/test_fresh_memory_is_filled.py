"""Deterministic algorithms fill memory that is fresh, where the program asks for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import braze

_FACTORIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(3),
    "integers": lambda x: torch.empty(3, dtype=torch.int32) - 1,
    "bools": lambda x: torch.empty(3, dtype=torch.bool),
    "like": torch.empty_like,
    "of_size": lambda x: torch.empty(x.shape[0] + 1),
    "new_empty": lambda x: x.new_empty(2, 2),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2)),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0)),
    "new_empty_strided": lambda x: x.new_empty_strided((2,), (1,)),
    "read": lambda x: torch.empty(3) + 1,
    "overwritten": lambda x: torch.empty(3).fill_(2),
    "written_in_part": lambda x: torch.cat([torch.empty(5)[1:4].copy_(x), torch.empty(2)]),
}


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", _FACTORIES)
def test_fresh_memory_is_filled(name: str, dynamic: bool | None) -> None:
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    program = _FACTORIES[name]
    compiled = braze.compile(program, dynamic=dynamic, fullgraph=True)
    for size in (3, 3):
        x = torch.ones(size)
        expected, actual = program(x), compiled(x)
        torch.testing.assert_close(actual, expected, equal_nan=True)
        assert actual.stride() == expected.stride()
