"""Architectures beyond the demo's: right, and one graph each but for those that say why not.

`make test` takes a choice of different kinds; `make zoo` takes them all.
"""

from __future__ import annotations

import pytest

from tests.models.zoo import ALL, BREAKS, judge

CHOICE = frozenset(
    """big_bird bloom canine deberta-v2 falcon jamba longformer mamba2 mixtral modernbert
    rwkv switch_transformers xlnet convnextv2 mobilevit segformer swin
    torchvision/efficientnet_b0 torchvision/googlenet torchvision/shufflenet_v2_x1_0""".split()
)

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


def test_lists_name_models() -> None:
    assert set(ALL) >= CHOICE | set(BREAKS)
