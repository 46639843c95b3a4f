"""`python -m benchmarks.demo`: three real models under eager, torch.compile and Braze, in minutes.

Prints one table, and writes demo.json and demo.png. Ends with status 1 where Braze fails or is
wrong on a model. `--models all` has every model, `python -m benchmarks.compare` measures more.
"""

from __future__ import annotations

import sys

from benchmarks.command_line import DEMO_MODELS, parser, plan_of, run_command
from benchmarks.table import demo_table


def main(arguments: list[str] | None = None) -> int:
    """Run the demo with these command-line arguments; the exit status."""
    options = parser("Real models, side by side.", ("float32",), "results", DEMO_MODELS)
    chosen = options.parse_args(arguments)
    return run_command(chosen, plan_of(chosen, full=False, usual=DEMO_MODELS), "demo", demo_table)


if __name__ == "__main__":
    sys.exit(main())
