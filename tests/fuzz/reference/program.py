"""A program of the reference's vocabulary: the text of a module, and what is done step by step."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import final

IMPORTS = """\
import abc
import array
import bisect
import builtins
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import heapq
import inspect
import io
import itertools
import json
import math
import operator
import os
import pickle
import random
import re
import statistics
import string
import struct
import sys
import threading
import time
import traceback
import types
import typing
import warnings
import weakref

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

LOG = []
"""

_FOOTER = """

if __name__ == "__main__":
    import braze

    def compiled(entry):
        return {way}

    for side in ("eager", "compiled"):
        space = dict(__name__="fuzz_program")
        exec(compile(open(__file__).read(), __file__, "exec"), space)
        entry = space["ENTRY"]
        space["run"] = compiled(entry) if side == "compiled" else entry
        for text in STEPS:
            try:
                if text.startswith("run("):
                    print(f"{{side:9}} {{text}}: {{eval(text, space)}}")
                else:
                    exec(text, space)
            except Exception as error:
                print(f"{{side:9}} {{text}}: {{type(error).__name__}}: {{error}}")
        print(f"{{side:9}} LOG: {{space['LOG']}}")
"""


@final
@dataclass(frozen=True, slots=True)
class Program:
    """text: a module that defines `ENTRY`. steps: statements executed in it, in order; those that
    begin with `run(` call what is compiled of `ENTRY`. way: an expression that compiles `entry`.
    idioms: the names of the idioms by the numbers that the names in the text end with."""

    text: str
    steps: tuple[str, ...]
    way: str
    seed: int = -1
    idioms: dict[int, str] = field(default_factory=dict)

    def render(self) -> str:
        """The program as one file: executed, it prints the results of both sides."""
        steps = "".join(f"    {step!r},\n" for step in self.steps)
        names = ", ".join(dict.fromkeys(self.idioms.values()))
        title = f'"""Program {self.seed}: {names}."""\n\n'
        return f"{title}{self.text}\n\nSTEPS = [\n{steps}]\n{_FOOTER.format(way=self.way)}"


def parse(source: str) -> Program:
    """What `render` wrote."""
    text, _, rest = source.partition("\n\nSTEPS = ")
    steps = ast.literal_eval(rest.partition("\n\n")[0].strip())
    (way,) = re.findall(r"^        return (.*)$", rest, re.MULTILINE)[:1]
    return Program(text.partition('"""\n\n')[2], tuple(steps), way)
