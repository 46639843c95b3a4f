"""Switching grad mode without a context manager's cost, on the path of every compiled call."""

from __future__ import annotations

import torch

set_grad_enabled = torch._C._set_grad_enabled
