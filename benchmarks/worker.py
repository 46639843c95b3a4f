"""One fresh process of the harness: reads a request, does one task, answers with JSON lines.

    {"event": "phase", "name": "torch.compile: first call"}
    {"event": "result", "result": {...}}

Only the standard library is imported before the clock for imports starts.
"""

import argparse
import importlib
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description="internal: one measurement in a fresh process")
    parser.add_argument("--answers", type=int, required=True, help="file descriptor to answer on")
    answers = os.fdopen(parser.parse_args().answers, "w", buffering=1)
    os.set_inheritable(answers.fileno(), False)

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    answer({"event": "phase", "name": "importing"})
    text = sys.stdin.read()
    wall, processor = time.perf_counter(), time.process_time()
    tasks = importlib.import_module("benchmarks.tasks")
    tasks.import_libraries(text)
    imports = {
        "wall_s": time.perf_counter() - wall,
        "processor_s": time.process_time() - processor,
    }
    answer({"event": "result", "result": {"import": imports, **tasks.perform(text, answer)}})


if __name__ == "__main__":
    main()
