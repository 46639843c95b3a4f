"""How PyTorch rounds to floats of a byte: up to 2.11 what is too large for e4m3 becomes no number,
2.13 takes the largest number instead, for infinities, too."""

from __future__ import annotations

import torch

E4M3_SATURATES = not bool(torch.tensor(1e4).to(torch.float8_e4m3fn).float().isnan())
