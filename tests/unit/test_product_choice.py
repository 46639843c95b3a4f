"""Which products the compiler hands to tuning."""

from __future__ import annotations

import pytest

from braze import pipeline
from braze.options import Options


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", None])
def test_only_tuning_asks(mode: str | None) -> None:
    assert pipeline._products(Options(mode=mode)) is None


def test_eager_numerics_keep_the_librarys() -> None:
    assert pipeline._products(Options(mode="max-autotune", numerics="eager")) is None
    assert pipeline._products(Options(mode="max-autotune")) is not None


def test_products_are_left_out_of_schedules_for_the_cpu() -> None:
    choose = pipeline._DEVICES["cpu"].choose
    assert choose(Options(mode="max-autotune")) is None
