"""Architectures beyond the demo's: right, and one graph each but for those that say why not.

So are their results at several sizes, for which they compile once more and not each time.
`make test` takes a choice of different kinds; `make zoo` takes them all.
"""

from __future__ import annotations

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

CHOICE = frozenset(
    """big_bird bloom canine deberta-v2 falcon jamba longformer mamba2 mixtral modernbert
    rwkv switch_transformers xlnet convnextv2 mobilevit segformer swin
    torchvision/efficientnet_b0 torchvision/googlenet torchvision/shufflenet_v2_x1_0""".split()
)

CHOICE_OF_SIZES = frozenset("bert bloom falcon gptj mobilenet_v2".split())

CHOICE_OF_TRAINING = frozenset("bert ibert m2m_100 t5 torchvision/shufflenet_v2_x1_0".split())

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in CHOICE else pytest.mark.zoo) for n in ALL]
)
def test_model(name: str) -> None:
    found = judge(name)
    assert found.accuracy.right, found
    assert not found.fallbacks
    if name in BREAKS:
        assert found.breaks, f"{name} is one graph now: take it off the list"
    else:
        assert (found.graphs, found.breaks) == (1, 0), found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in CHOICE_OF_SIZES else pytest.mark.zoo) for n in ALL]
)
def test_sizes(name: str) -> None:
    found = judge_sizes(name)
    assert not found.wrong, found
    assert not found.fallbacks
    if name in COMPILES_AT_EACH:
        assert found.compiling > 1 + VARYING, f"{name} serves all sizes now: take it off the list"
    else:
        assert found.compiling <= 1 + VARYING, found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in CHOICE_OF_TRAINING else pytest.mark.zoo)
        for n in ALL
        if n not in NO_TRAINING
    ],
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
    chosen = CHOICE | CHOICE_OF_SIZES | CHOICE_OF_TRAINING
    listed = {*BREAKS, *BREAKS_IN_TRAINING, *COMPILES_AT_EACH, *NO_TRAINING}
    assert set(ALL) >= chosen | listed
