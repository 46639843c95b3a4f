"""Whether strided tensors meet, beside the sets of their bytes; and the same of guards in C++."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind, TensorFacts
from braze.ir.captured.guard_tree import build_guard_tree
from braze.ir.captured.source import LocalSource
from braze.runtime.guards.compile import compile_entry_check
from braze.runtime.guards.evaluate import evaluate
from braze.runtime.guards.native_extension import LOADER
from braze.shapes.memory_overlap import extent_of, extents_meet, first_meeting

BASE = torch.zeros(1200)


def bytes_of(tensor: torch.Tensor) -> set[int]:
    width, start = tensor.element_size(), tensor.storage_offset()
    found: set[int] = set()
    for place in itertools.product(*map(range, tensor.shape)):
        first = start + sum(i * step for i, step in zip(place, tensor.stride()))
        found |= set(range(first * width, (first + 1) * width))
    return found


def some_view(choose: random.Random, rank: int, dtype: torch.dtype) -> torch.Tensor:
    shape = [choose.choice((0, 1, 2, 3, 4, 4, 4)) for _ in range(rank)]
    stride = [choose.choice((0, 1, 2, 3, 4, 6, 8, 12, 20, 24)) for _ in range(rank)]
    return BASE.view(dtype).as_strided(shape, stride, choose.randrange(40))


DTYPES = (torch.float32, torch.float64, torch.uint8, torch.int16)


def test_elements_that_meet_have_bytes_in_common() -> None:
    choose, answers = random.Random(0), [0, 0]
    for _ in range(4000):
        one, other = (some_view(choose, choose.randrange(4), choose.choice(DTYPES)) for _ in "ab")
        meet = not bytes_of(one).isdisjoint(bytes_of(other))
        assert extents_meet(extent_of(one), extent_of(other)) == meet
        assert extents_meet(extent_of(other), extent_of(one)) == meet
        answers[meet] += 1
    assert min(answers) > 400


def test_large_layouts_take_few_steps() -> None:
    z = torch.empty(64, 64, 64, 64)
    flat = z.view(4096, 4096)
    pairs = [
        (flat[:, ::2], flat[:, 1::2]),
        (flat[:, :1001], flat[:, 1001:]),
        (flat[::3], flat[1::3]),
        (z[..., :30], z[..., 30:]),
        (z[:, :30, :, :30], z[:, :30, :, 30:]),
        (flat[::2, ::3], flat[1::2, 1::3]),
        (z.transpose(1, 2)[:, :5], z.transpose(0, 3)[:, :, 5:]),
    ]
    for one, other in pairs:
        assert not extents_meet(extent_of(one), extent_of(other))
        assert extents_meet(extent_of(one), extent_of(one[-1:]))


def test_what_takes_too_long_counts_as_met() -> None:
    choose = random.Random(0)
    steps = [choose.randrange(2**20, 2**21) for _ in range(11)]
    one = torch.empty_strided((2,) * 11, steps, dtype=torch.uint8, device="meta")
    other = one.as_strided((2,) * 11, steps, 77)
    assert bytes_of(one).isdisjoint(bytes_of(other))
    assert extents_meet(extent_of(one), extent_of(other))


def test_storages_without_memory_are_told_apart() -> None:
    one, other = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    assert first_meeting(([one], [], [other])) is None
    assert first_meeting(([one], [], [one[2:]])) == (0, 1)
    assert first_meeting(([one[:2]], [], [one[2:]])) is None
    assert first_meeting(([], [one[:2]], [one[2:]])) == (0, 1)
    assert first_meeting(([], [], [one, one])) is None


@pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")
def test_compiled_guards_say_the_same() -> None:
    """Random views, as the snapshot, where it knows, and both other evaluators see them."""
    choose, answers, answered = random.Random(1), [0, 0], 0
    names = ("a", "b", "c")
    sources = tuple(map(LocalSource, names))
    for _ in range(60):
        ranks = [choose.randrange(1, 4) for _ in names]
        dtypes = [choose.choice(DTYPES) for _ in names]
        roles = [choose.randrange(3) for _ in names]
        groups = tuple(
            [tuple([s for s, its in zip(sources, roles) if its == role]) for role in range(3)]
        )
        guards = [Guard(None, GuardKind.STORAGE_OVERLAP, groups)]
        for source, rank, dtype in zip(sources, ranks, dtypes):
            any_sizes: tuple[int | None, ...] = (None,) * rank
            facts = TensorFacts(
                torch.Tensor, dtype, torch.device("cpu"), False, any_sizes, any_sizes
            )
            guards.append(Guard(source, GuardKind.TENSOR_MATCH, facts))
        tree = build_guard_tree(guards, sources)
        entry = compile_entry_check(guards, sources)
        for _ in range(60):
            views = [some_view(choose, *each) for each in zip(ranks, dtypes)]
            if choose.random() < 0.2:
                views[0] = views[0].clone()
            frame = FrameValues(dict(zip(names, views)), (), {})
            taken = [[v for v, its in zip(views, roles) if its == role] for role in range(3)]
            holds = first_meeting(taken) is None
            natively = [known(frame) is not None for known in entry.memory.checks]
            assert (entry.check(frame) is not None) == holds
            assert (evaluate(tree, frame) is not None) == holds
            assert holds or not any(natively)
            answers[holds] += 1
            answered += any(natively)
    assert min(answers) > 400
    assert answered > 0.8 * answers[True]
