"""Programs that compiled at each size: now they do once for the first, and once for all others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal
from braze.tracing.shape_rules.infer import infer

Program = Callable[[torch.Tensor], Any]


def complex_parts(x: torch.Tensor) -> Any:
    """FNet: views of complex values as real ones, and back."""
    transformed = torch.fft.fftn(x, dim=(1, 2))
    pairs = torch.view_as_complex(torch.stack([x, x + 1], -1))
    return transformed.real, transformed.imag + x, pairs[:, 1:]


def whole_floats_in_arange(x: torch.Tensor) -> Any:
    """XLNet: `-1.0` says how many, as `-1` does."""
    down = torch.arange(x.shape[1], -x.shape[0], -1.0, dtype=torch.int64)
    return down, torch.arange(0.0, x.shape[1], 2.0), torch.arange(x.shape[1], dtype=torch.float64)


def from_the_end_of_a_table(x: torch.Tensor) -> Any:
    """MPT: the length is written as 2048 less what is cut off, and had from that."""
    table = torch.arange(2048).view(1, 2048)
    return table[:, max(0, table.size(1) - x.size(1)) :] + x[:, :, 0]


def pooled_rows(x: torch.Tensor) -> Any:
    """CANINE: C++ asks for the length of what it pools in one dimension."""
    pool = torch.nn.functional.max_pool1d
    rows = x.transpose(1, 2)
    return pool(rows.contiguous(), 3, ceil_mode=True), pool(rows, kernel_size=(2,), padding=1)


def chunks_of_a_range(x: torch.Tensor) -> Any:
    """CANINE: how many chunks there are is the program, not how long the last one is."""
    ends = [(start, min(x.shape[1], start + 128)) for start in range(0, x.shape[1], 128)]
    back = [place for place in range(-1, -x.shape[1], -300)]  # noqa: C416
    return torch.cat([x[:, start:end] * 2 for start, end in ends], 1), x + len(back)


def uneven_pieces(x: torch.Tensor) -> Any:
    """How many pieces there are is the program, not whether the last one is shorter."""
    chunks = [chunk * place for place, chunk in enumerate(x.chunk(3, 1))]
    halves = [half + place for place, half in enumerate(torch.tensor_split(x, 4, dim=1))]
    return torch.cat(chunks, 1), torch.cat(halves, 1), x.tensor_split(2, 1)[1] * 2


def back_from_frequencies(x: torch.Tensor) -> Any:
    """The gradient transforms what lies in another order than it has."""
    return torch.fft.irfft(torch.fft.rfft(x, dim=1) * 2, n=x.shape[1], dim=1).square()


def triangles(x: torch.Tensor) -> Any:
    """Factories whose C++ takes numbers, and whose results' sizes follow from these."""
    count = x.shape[1]
    upper = torch.triu_indices(count, count, 1)
    lower = torch.tril_indices(x.shape[0], col=count, offset=-1, dtype=torch.int32)
    return upper, lower, (x @ x.transpose(1, 2))[:, upper[0], upper[1]]


LSTM = torch.nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
WITHOUT_BIAS = torch.nn.LSTM(6, 4, bias=False)


def lstm(x: torch.Tensor) -> Any:
    """C++ asks how many elements there are before it looks for symbols: it ran eagerly."""
    rows, (hidden, cell) = LSTM(x)
    return rows * 2, hidden, cell + 1, WITHOUT_BIAS(x)[0]


PROGRAMS: tuple[Program, ...] = (
    complex_parts,
    whole_floats_in_arange,
    from_the_end_of_a_table,
    pooled_rows,
    chunks_of_a_range,
    uneven_pieces,
    back_from_frequencies,
    triangles,
    lstm,
)
SMOOTH: tuple[Program, ...] = (
    complex_parts,
    pooled_rows,
    uneven_pieces,
    back_from_frequencies,
    lstm,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_two_compiles(journal: Journal, program: Program) -> None:
    compiled = braze.compile(program)
    for batch, length in ((2, 16), (3, 24), (5, 56), (4, 40), (6, 31)):
        x = torch.randn(batch, length, 6)
        for mine, theirs in zip(_tensors(compiled(x)), _tensors(program(x)), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
    assert not journal.fallbacks()
    assert len(journal.records()) == 2


@pytest.mark.parametrize("program", SMOOTH, ids=lambda program: program.__name__)
def test_two_compiles_of_gradients(journal: Journal, program: Program) -> None:
    compiled = braze.compile(program)
    for batch, length in ((2, 16), (3, 24), (5, 56), (4, 40), (6, 31)):
        given = torch.randn(batch, length, 6)
        mine, theirs = (given.clone().requires_grad_() for _ in range(2))
        for x, function in ((mine, compiled), (theirs, program)):
            results = [r for r in _tensors(function(x)) if r.is_floating_point()]
            torch.cat([result.square().flatten() for result in results]).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert not journal.fallbacks()
    assert len([r for r in journal.records() if not r.function.endswith("(backward)")]) == 2


def test_quotients_of_a_size_that_is_a_number_are_numbers(journal: Journal) -> None:
    """Mamba: a length was found to be one number after halves of it had been asked for. What was
    computed of the halves was refused: nothing said that it stays inside of them."""

    def scan(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 2:
            return x
        odd = scan(x[:, :-1:2] * x[:, 1::2])
        even = (odd[:, :-1] if x.shape[1] % 2 == 0 else odd) * x[:, 2::2]
        even = torch.cat([x[:, :1], even], 1)
        if even.shape[1] != odd.shape[1] + 1:
            return torch.stack([even, odd], 2).flatten(1, 2)
        odd = torch.nn.functional.pad(odd, (0, 0, 0, 1))
        return torch.stack([even, odd], 2).flatten(1, 2)[:, :-1]

    compiled = braze.compile(scan, fullgraph=True)
    for batch, length in ((2, 16), (3, 24), (5, 56), (4, 40)):
        x = torch.rand(batch, length, 6)
        torch.testing.assert_close(compiled(x), x.cumprod(1))
    assert not journal.fallbacks()


PROJECTED = torch.nn.LSTM(6, 5, proj_size=3, batch_first=True)


def test_what_takes_numbers_is_run_by_itself(journal: Journal) -> None:
    """An LSTM with projections asks for numbers in C++: a break, where all of it ran eagerly."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return PROJECTED(x * 2)[0] + 1

    compiled = braze.compile(program)
    counts = []
    for length in (16, 24, 56, 40, 31):
        x = torch.randn(2, length, 6)
        torch.testing.assert_close(compiled(x), program(x))
        counts.append(len(journal.records()))
    assert counts[2] == counts[-1], counts
    assert not journal.fallbacks()


def test_triangles_of_any_matrix() -> None:
    for rows, columns, offset in itertools.product(range(5), range(5), range(-6, 7)):
        for op in (torch.ops.aten.tril_indices.default, torch.ops.aten.triu_indices.default):
            found = infer(op, (rows, columns, offset), {})
            assert found.shape == op(rows, columns, offset).shape, (rows, columns, offset)


def test_more_chunks_are_another_program(journal: Journal) -> None:
    compiled = braze.compile(chunks_of_a_range)
    for length, compiles in ((100, 1), (120, 2), (140, 3), (200, 3), (256, 3), (257, 4), (5, 4)):
        x = torch.randn(2, length, 3)
        for mine, theirs in zip(compiled(x), chunks_of_a_range(x), strict=True):
            torch.testing.assert_close(mine, theirs)
        assert len(journal.records()) == compiles, length


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def test_a_range_in_a_container_keeps_its_end() -> None:
    """It is no range that is only iterated, whatever is iterated."""

    def program(x: torch.Tensor) -> Any:
        size = x.shape[1]
        return [x.sum() + held.stop for held in [range(0, size, 128)]], [*{range(0, size, 128)}]

    compiled = braze.compile(program, backend="aot_eager", dynamic=True)
    for size in (130, 140, 150):
        (found, [ours]), (wanted, [eager]) = (f(torch.ones(1, size)) for f in (compiled, program))
        torch.testing.assert_close(found, wanted)
        assert ours == eager and ours.stop == eager.stop
