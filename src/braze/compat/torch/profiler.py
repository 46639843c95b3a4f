"""Whether one of PyTorch's profilers is at work: `PROFILER._is_profiler_enabled`, one look."""

from __future__ import annotations

from typing import Any

from braze.compat import private_names as private

PROFILER: Any = private.profiler
