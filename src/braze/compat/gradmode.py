"""Grad mode and autocast without a context manager's cost, on the path of every compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

set_grad_enabled = torch._C._set_grad_enabled
is_autocast_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
# A graph has the casts that autocast made; its operators must not be cast again.
without_autocast: Any = torch._C._DisableAutocast
