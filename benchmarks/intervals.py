"""The statistics of interleaved timings: medians, ratios of pairs, confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy

_RESAMPLES = 10_000
_SEED = 7


@final
@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios and its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def inverted(self) -> Ratio:
        """A time ratio as a speedup, and the other way round."""
        return Ratio(1 / self.median, 1 / self.high, 1 / self.low)


def median(values: Sequence[float]) -> float:
    """The middle value; ValueError where there is none."""
    if not values:
        raise ValueError("median of no values")
    return float(numpy.median(numpy.asarray(values)))


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Of the two times of each round, the median ratio, with its percentile bootstrap interval.

    Rounds are resampled whole, so what slows a whole round down cancels (Efron and Tibshirani,
    An Introduction to the Bootstrap, chapter 13). The seed is fixed: the same times give the
    same interval.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} times are not pairs")
    ratios = numpy.asarray(numerators) / numpy.asarray(denominators)
    picks = numpy.random.default_rng(_SEED).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    medians = numpy.median(ratios[picks], axis=1)
    low, high = numpy.percentile(medians, [2.5, 97.5])
    return Ratio(float(numpy.median(ratios)), float(low), float(high))


def geometric_mean(values: Iterable[float]) -> float | None:
    """exp of the mean logarithm; None of no values. ValueError for one that is not positive."""
    logarithms = []
    for value in values:
        if not value > 0:
            raise ValueError(f"geometric mean of {value}")
        logarithms.append(math.log(value))
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None
