"""The benchmarks are a package beside `src`, not installed: the repository's root finds it."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
