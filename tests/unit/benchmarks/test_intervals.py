from __future__ import annotations

import random

import pytest
from benchmarks.intervals import Ratio, geometric_mean, median, paired_ratio


def test_median_of_an_even_count_lies_between():
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_median_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_paired_ratio_is_the_median_of_the_ratios_of_pairs():
    # The ratio of the medians would be 2 / 10.
    assert paired_ratio([1.0, 2.0, 30.0], [10.0, 4.0, 30.0]).median == 0.5


def test_drift_that_hits_both_of_a_pair_cancels():
    drift = [1.0 + index for index in range(30)]
    ratio = paired_ratio([0.5 * d for d in drift], drift)
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.5, 0.5)


def test_interval_holds_the_true_ratio_about_as_often_as_it_says():
    source = random.Random(1)
    hits = 0
    for _ in range(40):
        pairs = [(source.gauss(0.8, 0.05), 1.0) for _ in range(30)]
        ratio = paired_ratio(*zip(*pairs, strict=True))
        hits += ratio.low <= 0.8 <= ratio.high
    assert 35 <= hits <= 40


def test_same_times_give_the_same_interval():
    times = [random.Random(2).uniform(1, 2) for _ in range(20)]
    assert paired_ratio(times, times[::-1]) == paired_ratio(times, times[::-1])


def test_unpaired_times_are_an_error():
    with pytest.raises(ValueError, match="not pairs"):
        paired_ratio([1.0], [1.0, 2.0])


def test_inverted_ratio_swaps_the_ends():
    assert Ratio(0.5, 0.25, 1.0).inverted() == Ratio(2.0, 1.0, 4.0)


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None
    with pytest.raises(ValueError, match="geometric mean of 0"):
        geometric_mean([1.0, 0.0])
