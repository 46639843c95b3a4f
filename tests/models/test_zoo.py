"""Architectures beyond the demo's: right, and one graph each but for those that say why not.

So are their results at several sizes, for which they compile once more and not each time.
`make test` takes a choice of different kinds; `make zoo` takes them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from tests.models.zoo import (
    ALL,
    BREAKS,
    BREAKS_IN_TRAINING,
    COMPILES_AT_EACH,
    NO_TRAINING,
    VARYING,
    judge,
    judge_sizes,
)
from tests.shares import due_today

CHOICE = frozenset(
    """big_bird bloom canine deberta-v2 falcon jamba longformer mamba2 mixtral modernbert
    rwkv switch_transformers xlnet convnextv2 mobilevit segformer swin
    torchvision/efficientnet_b0 torchvision/googlenet torchvision/shufflenet_v2_x1_0""".split()
)

CHOICE_OF_SIZES = frozenset("bert bloom falcon gptj mobilenet_v2".split())

CHOICE_OF_TRAINING = frozenset("bert ibert m2m_100 t5 torchvision/shufflenet_v2_x1_0".split())

pytestmark = pytest.mark.filterwarnings("ignore")


def chosen(names: Iterable[str], choice: Collection[str]) -> list[Any]:
    """Each model, those outside of the choice marked; of the choice each day another half."""
    names = list(names)
    rest = [pytest.param(n, marks=pytest.mark.zoo) for n in names if n not in choice]
    return due_today([n for n in names if n in choice], 2) + rest


@pytest.mark.parametrize("name", chosen(ALL, CHOICE))
def test_model(name: str) -> None:
    found = judge(name)
    assert found.accuracy.right, found
    assert not found.fallbacks
    if name in BREAKS:
        assert found.breaks, f"{name} is one graph now: take it off the list"
    else:
        assert (found.graphs, found.breaks) == (1, 0), found


@pytest.mark.parametrize("name", chosen(ALL, CHOICE_OF_SIZES))
def test_sizes(name: str) -> None:
    found = judge_sizes(name)
    assert not found.wrong, found
    assert not found.fallbacks
    if name in COMPILES_AT_EACH:
        assert found.compiling > 1 + VARYING, f"{name} serves all sizes now: take it off the list"
    else:
        assert found.compiling <= 1 + VARYING, found


@pytest.mark.parametrize(
    "name", chosen([n for n in ALL if n not in NO_TRAINING], CHOICE_OF_TRAINING)
)
def test_training(name: str) -> None:
    """With dropout: what a model draws, results, and gradients of all parameters."""
    found = judge(name, trains=True)
    assert found.accuracy.right, found
    assert not found.fallbacks
    if name in BREAKS or name in BREAKS_IN_TRAINING:
        assert found.breaks, f"{name} is one graph now: take it off the list"
    else:
        assert (found.graphs, found.breaks) == (1, 0), found


def test_lists_name_models() -> None:
    choices = CHOICE | CHOICE_OF_SIZES | CHOICE_OF_TRAINING
    listed = {*BREAKS, *BREAKS_IN_TRAINING, *COMPILES_AT_EACH, *NO_TRAINING}
    assert set(ALL) >= choices | listed
