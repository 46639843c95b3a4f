"""Finds what is wrong: which stage, pass or kernel, and the fewest operators that show it."""

from braze.diagnose.bisect import Bisection, GraphExaminer, bisect_call
from braze.diagnose.suspect import Suspect

__all__ = ["Bisection", "GraphExaminer", "Suspect", "bisect_call"]
