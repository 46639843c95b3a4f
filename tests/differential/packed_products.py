"""Random products on the CPU that are kernels of packed operands, compared with float64.

    python -m tests.differential.packed_products --programs 200 --first 0

A program is a handful of products of any sizes, orders and steps in memory, and what follows them.
The machine's measurements are left out: every product that a kernel can compute is one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import torch
from torch.nn.functional import gelu, layer_norm, silu

import braze
from braze.devices import cpu
from braze.runtime.launch.product_rates import ProductShares

_ROWS = (28, 29, 41, 42, 56, 57, 70, 99, 112, 131)
_FEW_ROWS = (4, 5, 13, 14, 16, 27)  # of weights that are packed once
_COLUMNS = (32, 33, 47, 63, 64, 65, 96, 127, 160)
_DEPTHS = (1, 2, 7, 15, 16, 17, 31, 64, 255, 256, 257, 300, 513)
_SPECIAL = (float("nan"), float("inf"), -float("inf"))
Tensors = list[torch.Tensor]


@contextlib.contextmanager
def all_packed() -> Iterator[None]:
    """Whatever products kernels can compute are theirs inside."""
    with (
        mock.patch.object(cpu, "CPU", replace(cpu.CPU, packed_products=1)),
        mock.patch.object(ProductShares, "is_quicker", lambda *_: True),
    ):
        yield


def _matrix(draw: random.Random, rows: int, columns: int, batch: int = 0) -> torch.Tensor:
    """Of one of the ways in which a matrix may lie in memory."""
    shape = (batch,) if batch else ()
    kind = draw.randrange(7)
    if kind == 0:
        return torch.randn(*shape, columns, rows).mT
    if kind == 1:
        return torch.randn(*shape, rows, columns + 5)[..., 3 : columns + 3]
    if kind == 2:
        return torch.randn(*shape, rows + 4, 2 * columns)[..., 4:, ::2]
    if kind == 3:
        return torch.randn(*shape, columns + 1, 3 * rows)[..., 1:, ::3].mT
    if kind == 4:
        return torch.randn(*shape, 1, columns).expand(*shape, rows, columns)
    return torch.randn(*shape, rows, columns)


def _epilogues(draw: random.Random, rows: int, columns: int) -> Callable[..., torch.Tensor]:
    vector, other = torch.randn(columns), torch.randn(rows, columns)
    turned, column = torch.randn(columns, rows).t(), torch.randn(rows, 1)
    found: list[Callable[..., torch.Tensor]] = [
        lambda y: y,
        lambda y: gelu(y + vector.to(y.dtype)),
        lambda y: torch.relu(y) * column.to(y.dtype),
        lambda y: silu(y) + other.to(y.dtype),
        lambda y: y - turned.to(y.dtype),
        lambda y: (y * 0.5).tanh().to(torch.bfloat16),
        lambda y: layer_norm(y, (columns,)),
        lambda y: y.sum(-1),
        lambda y: (y + 1).mT,
    ]
    return draw.choice(found)


def _product(draw: random.Random) -> tuple[Callable[..., object], Tensors]:
    kind = draw.randrange(5)
    many = _ROWS if kind > 2 else (*_ROWS, *_FEW_ROWS)
    m, n, k = draw.choice(many), draw.choice(_COLUMNS), draw.choice(_DEPTHS)
    rest, kept = _epilogues(draw, m, n), draw.random() < 0.2
    batch = draw.choice((2, 3)) if kind > 2 else 0
    given = [_matrix(draw, m, k, batch), _matrix(draw, k, n, batch)]
    if draw.random() < 0.2:
        given[0][..., draw.randrange(m), draw.randrange(k)] = draw.choice(_SPECIAL)
    if kind == 1:
        given.append(torch.randn(draw.choice((1, m)), n))
    elif kind == 2:
        given.append(torch.randn(n))
    elif kind == 4:
        given.append(torch.randn(batch, draw.choice((1, m)), n))

    def run(first: torch.Tensor, second: torch.Tensor, *added: torch.Tensor) -> object:
        made = first @ second
        if added:
            add = torch.baddbmm if batch else torch.addmm
            made = add(added[0], first, second)
        result = rest(made)
        return (made, result) if kept else result

    return run, given


def make_program(seed: int) -> tuple[Callable[[list[Tensors]], list[object]], list[Tensors]]:
    """Products, and what they multiply."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    parts = [_product(draw) for _ in range(6)]
    runs = [run for run, _ in parts]

    def program(given: list[Tensors]) -> list[object]:
        return [run(*tensors) for run, tensors in zip(runs, given, strict=True)]

    return program, [given for _, given in parts]


def check(seed: int) -> tuple[list[str], int]:
    """What is wrong with a program, and how many of its products were kernels."""
    program, given = make_program(seed)
    compiled = braze.compile(program, fullgraph=True)
    with torch.no_grad(), all_packed():
        report = braze.explain(program)(given)
        for _ in range(3):  # kernels pack weights themselves, then they are packed, then kept
            ours = compiled(given)
    eager = program(given)
    exact = program([[tensor.double() for tensor in part] for part in given])
    found = []
    for number, three in enumerate(zip(_flat(ours), _flat(eager), _flat(exact), strict=True)):
        found += [f"seed {seed}, result {number}: {text}" for text in _differences(*three)]
    return found, report.counters["products"]


def _flat(results: list[object]) -> Tensors:
    found: Tensors = []
    for result in results:
        found += result if isinstance(result, tuple) else [result]  # type: ignore[list-item]
    return found


def _differences(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> Iterator[str]:
    if (mine.shape, mine.dtype, mine.stride()) != (eager.shape, eager.dtype, eager.stride()):
        yield f"{mine.shape} {mine.dtype} {mine.stride()}, not {eager.stride()}"
        return
    mine, eager, exact = mine.double(), eager.double(), exact.double()
    finite = exact.isfinite()
    if not torch.equal(mine.isnan(), exact.isnan()) or not torch.equal(mine.isfinite(), finite):
        yield "other elements are finite"
    scale = exact[finite].abs().max() if finite.any() else torch.tensor(0.0)
    few = exact[finite].unique().numel() < 100  # their errors are of no distribution
    errors = [(x - exact)[finite].square().mean().sqrt() for x in (mine, eager)]
    if errors[0] > 1.5 * errors[1] + (1e-6 if few else 1e-7) * scale:
        yield f"an error of {errors[0]:.2e}, eager's is {errors[1]:.2e}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    total = 0
    for seed in range(options.first, options.first + options.programs):
        wrong, kernels = check(seed)
        total += kernels
        print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
    print(f"{options.programs} programs, {total} products were kernels")
