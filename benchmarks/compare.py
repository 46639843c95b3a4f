"""`python -m benchmarks.compare`: the full comparison, in float32 and bfloat16.

What the demo shows, and in addition confidence intervals, warm starts, cold compiles without the
one-time cost of a process, errors against float64, peak memory, and overhead on tiny inputs.
"""

from __future__ import annotations

import sys

from benchmarks.command_line import parser, plan_of, run_command
from benchmarks.table import full_tables


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison with these command-line arguments; the exit status."""
    options = parser("The full comparison.", ("float32", "bfloat16"), "results")
    chosen = options.parse_args(arguments)
    return run_command(chosen, plan_of(chosen, full=True), "compare", full_tables)


if __name__ == "__main__":
    sys.exit(main())
