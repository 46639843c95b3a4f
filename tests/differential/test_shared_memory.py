"""Arguments that are views of one memory, some of which are written to: how they lie to each other
changes from call to call, and all of the memory is compared with eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze

Pair = tuple[torch.Tensor, torch.Tensor]

# Two views of 4 x 6 elements each; of a base of 12 x 12.
APART: dict[str, Callable[[torch.Tensor], Pair]] = {
    "rows": lambda z: (z[:4, :6], z[4:8, :6]),
    "rows the other way": lambda z: (z[8:, :6], z[4:8, :6]),
    "columns": lambda z: (z[:4, :6], z[:4, 6:]),
    "two storages": lambda z: (z[:4, :6], z.clone()[:4, :6]),
    "interleaved": lambda z: (z[:4, ::2], z[:4, 1::2]),
    "interleaved rows": lambda z: (z[:8:2, :6], z[1:8:2, :6]),
    "chunks": lambda z: z[:4].chunk(2, -1),  # type: ignore[return-value]
    "detached": lambda z: (z[:4, :6].detach(), z.data[4:8, :6]),
}
TOGETHER: dict[str, Callable[[torch.Tensor], Pair]] = {
    "overlapping rows": lambda z: (z[:4, :6], z[2:6, :6]),
    "overlapping columns": lambda z: (z[:4, :6], z[:4, 5:11]),
    "equal": lambda z: (z[:4, :6], z[:4, :6]),
    "transposed": lambda z: (z[:4, :6], z[:6, :4].t()),
    "interleaved ones that meet": lambda z: (z[:4, ::2], z[1:5, 1::2].as_strided((4, 6), (12, 1))),
    "the whole": lambda z: (z[4:8, :6], z),
    "rows and a part": lambda z: (z[:4], z[1:2, :6]),
    "detached ones": lambda z: (z[:4, :6], z[2:6, :6].detach()),
}


def scale(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    y = b.sum()
    a.mul_(2)
    return y + (b * w).sum(), a + b.sum()


def assign(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a[1:, 2] = 5.0
    a[0] = b[0, 0]
    return (b * w).sum()


def copy(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a.copy_(torch.arange(6.0))
    b[:, :1].copy_(a[:, 1:2] + 1)
    return (a.sum() * w).sum()


def put(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a.index_put_((torch.tensor([0, 2]), torch.tensor([1, 5])), torch.tensor(7.0))
    return (a * 2, b.sum() * w)


def into(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        torch.add(b.sum(), 1.0, out=a[0, 0])
        torch.mul(a, 2.0, out=a)
    return a.sum() * w + b.sum()


def in_turn(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        torch.add(b, 1.0, out=a)
    return a.sum() * w + b.sum()


def both(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a.add_(1)
    b.add_(a.mean())
    a.add_(1)
    return ((a.sum() + b.sum()) * w).sum()


def views(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a.add_(b.sum())
    return a[1:], b.t(), (a.sum() * w)


def tracked(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a.mul_(w)
    return a.sum(), (b * 2).sum()


WRITES = (scale, assign, copy, put, into, both, views)


def check(
    write: Callable[..., Any], compiled: Any, lies: Callable[..., Pair], shift: float
) -> None:
    """One call of both, on memories of their own."""
    seen = []
    for call in (compiled, write):
        z = torch.arange(144.0).view(12, 12) + shift
        w = torch.ones((), requires_grad=True)
        a, b = lies(z)
        try:
            found = call(a, b, w)
        except RuntimeError as error:  # autograd refuses the write
            seen.append(([z], None, type(error)))
            continue
        leaves = found if isinstance(found, tuple) else (found,)
        storages = {t.untyped_storage().data_ptr(): n for n, t in enumerate((a, b))}
        shared = [storages.get(t.untyped_storage().data_ptr()) for t in leaves]
        flows = [t.requires_grad for t in (*leaves, a, b, z)]
        total = sum([t.sum() for t in leaves if t.requires_grad], torch.zeros(()))
        if total.requires_grad:
            total.backward()
        kept = [t.detach().clone() for t in (*leaves, a, b, z)]
        layout = [(t.stride(), t.storage_offset()) for t in leaves]
        seen.append((kept, w.grad, shared, flows, layout, [t._version for t in (a, b, z)]))
    (mine, grad, *facts), (theirs, its_grad, *its_facts) = seen
    assert facts == its_facts
    assert (grad is None) == (its_grad is None)
    torch.testing.assert_close([*mine, grad or w], [*theirs, its_grad or w])


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_memory_apart_is_one_graph(
    write: Callable[..., Any], dynamic: bool | None, backend: str, gradients: bool
) -> None:
    compiled = braze.compile(
        write, backend=backend, dynamic=dynamic, fullgraph=True, recompile_limit=9
    )
    with torch.set_grad_enabled(gradients):
        for round_ in range(2):
            for lies in APART.values():
                check(write, compiled, lies, round_)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_memory_together_is_one_graph(
    write: Callable[..., Any], dynamic: bool | None, backend: str, gradients: bool
) -> None:
    braze.reset()
    compiled = braze.compile(
        write, backend=backend, dynamic=dynamic, fullgraph=True, recompile_limit=9
    )
    with torch.set_grad_enabled(gradients):
        for round_ in range(2):
            for name, lies in TOGETHER.items():
                if name != "detached ones":
                    check(write, compiled, lies, round_)
    (row,) = braze.status().rows
    assert row.entries <= len(TOGETHER) - 1


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("backend", ["braze", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("write", [*WRITES, tracked, in_turn], ids=lambda f: f.__name__)
def test_memory_that_comes_to_overlap(
    write: Callable[..., Any], dynamic: bool | None, backend: str, gradients: bool
) -> None:
    compiled = braze.compile(write, backend=backend, dynamic=dynamic, recompile_limit=20)
    with torch.set_grad_enabled(gradients):
        for apart, together in itertools.zip_longest(
            APART.values(), TOGETHER.values(), fillvalue=APART["rows"]
        ):
            for lies in (apart, together, apart):
                check(write, compiled, lies, 1.0)


class Flat:
    """A model whose parameters, gradients and statistics lie in one buffer each."""

    def __init__(self, gap: int, buckets: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.BatchNorm1d(7), nn.Linear(7, 3))
        count = sum(p.numel() + gap for p in self.model.parameters())
        self.values, self.gradients = torch.zeros(count), torch.zeros(count)
        start = 0
        for p in self.model.parameters():
            value = self.values[start : start + p.numel()].view_as(p)
            p.data = value.copy_(p.detach())
            if buckets:
                p.grad = self.gradients[start : start + p.numel()].view_as(p)
            start += p.numel() + gap
        norm: Any = self.model[2]
        self.statistics = torch.cat([norm.running_mean, norm.running_var])
        norm.running_mean, norm.running_var = self.statistics.chunk(2)

    def state(self) -> list[torch.Tensor]:
        return [self.values, self.gradients, self.statistics]

    def versions(self) -> list[int]:
        return [t._version for t in (*self.model.parameters(), *self.model.buffers())]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
}


@pytest.mark.parametrize("buckets", [True, False])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["braze", "eager"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_flat_buffers_train_in_one_graph(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    backend: str,
    dynamic: bool | None,
    buckets: bool,
) -> None:
    braze.reset()
    seen = []
    for compiles in (True, False):
        flat = Flat(0 if buckets else 3, buckets)
        stepper = optimizer(flat.model.parameters())

        def step(x: torch.Tensor, flat: Flat = flat, stepper: Any = stepper) -> torch.Tensor:
            loss = flat.model(x).square().mean()
            loss.backward()
            stepper.step()
            stepper.zero_grad(set_to_none=not buckets)
            return loss.detach()

        run: Any = step
        if compiles:
            run = braze.compile(step, backend=backend, dynamic=dynamic, fullgraph=True)
        torch.manual_seed(1)
        losses = [run(torch.randn(rows, 5)) for rows in (6, 6, 7, 6)]
        seen.append([*losses, *flat.state()])
        if backend == "braze":
            seen[-1].append(torch.tensor(flat.versions()))
        if compiles:
            (row,) = braze.status().rows
            assert (row.times_broken, len(row.left_to_eager)) == (0, 0)
            assert row.entries <= 3  # without and with state, and at other sizes
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("dynamic", [None, True])
def test_caches_of_one_tensor(dynamic: bool | None) -> None:
    def attend(k: torch.Tensor, v: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        k[:, at] = x
        v.index_copy_(1, at, x * 2)
        return torch.softmax(x @ k.transpose(1, 2), -1) @ v

    braze.reset()
    run = braze.compile(attend, dynamic=dynamic, fullgraph=True)
    cache, other = torch.zeros(2, 3, 8, 4), torch.zeros(2, 3, 8, 4)
    for place in range(8):
        at, x = torch.tensor([place]), torch.randn(3, 1, 4)
        torch.testing.assert_close(run(*cache.unbind(), at, x), attend(*other.unbind(), at, x))
        assert torch.equal(cache, other)
    (row,) = braze.status().rows
    assert row.entries == 1


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
def test_versions_of_views_count_all_writes(backend: str) -> None:
    """A write through `data` is not counted, the one to another view of the memory is."""

    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        c.add_(1)
        a.data.mul_(2)
        b.add_(1)
        b.add_(1)

    run = braze.compile(write, backend=backend, fullgraph=True)
    for call in (run, write, run):
        z = torch.ones(6)
        call(*z.chunk(3))
        assert z._version == 3
