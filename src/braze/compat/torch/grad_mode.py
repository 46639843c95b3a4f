"""Grad mode and autocast without a context manager's cost, on the path of every compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braze.compat import private_names as private

set_grad_enabled = private.set_grad_enabled
is_autocast_on: Callable[[], bool] = private.is_autocast_on
# A graph has the casts that autocast made; its operators must not be cast again.
without_autocast: Any = private.without_autocast
