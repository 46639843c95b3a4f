"""Finds what is wrong: which stage, pass or kernel, and the fewest operators that show it."""

from braze.diagnose.bisect import Bisection, GraphExaminer, bisect_call
from braze.diagnose.suspect import Suspect
from braze.diagnose.wrong_guard import WrongGuard, find_wrong_guard

__all__ = [
    "Bisection",
    "GraphExaminer",
    "Suspect",
    "WrongGuard",
    "bisect_call",
    "find_wrong_guard",
]
