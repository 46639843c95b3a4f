"""Runs a package in a process of its own, and says as JSON what it had to do with.

python run_package.py CALLS RESULTS: calls are packages by name, and of each a list of (method,
args, kwargs), written by torch.save; results what they returned. Seconds are those of the processor
until the first result of a package.
"""

from __future__ import annotations

import json
import sys
import time

import torch

import braze
from braze.trace import JOURNAL


def main(calls: str, results: str) -> None:
    packages, given = torch.load(calls, weights_only=False)
    made: dict[str, list[object]] = {}
    seconds, methods = {}, {}
    for name, path in packages.items():
        began = time.process_time()
        loaded = braze.load_package(path)
        made[name] = []
        for method, args, kwargs in given[name]:
            made[name].append(loaded[method](*args, **kwargs))
            seconds.setdefault(name, time.process_time() - began)
        methods[name] = loaded.methods
    torch.save(made, results)
    facts = {
        "seconds": seconds,
        "methods": methods,
        "compiles": len(JOURNAL.records()),
        "modules": [name for name in sys.modules if name.startswith("tests")],
    }
    print(json.dumps(facts))


main(*sys.argv[1:])
