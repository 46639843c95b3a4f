"""`python -m benchmarks.demo`: eight real models under eager, torch.compile and Braze.

Prints one table, and writes demo.json and demo.png. Ends with status 1 where Braze fails or is
wrong on a model.
"""

from __future__ import annotations

import sys

from benchmarks.command_line import parser, plan_of, run_command
from benchmarks.table import demo_table


def main(arguments: list[str] | None = None) -> int:
    """Run the demo with these command-line arguments; the exit status."""
    chosen = parser("Real models, side by side.", ("float32",), "results").parse_args(arguments)
    return run_command(chosen, plan_of(chosen, full=False), "demo", demo_table)


if __name__ == "__main__":
    sys.exit(main())
