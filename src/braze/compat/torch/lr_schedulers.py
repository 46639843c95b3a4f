"""torch's schedules of learning rates, as the release at hand defines them."""

from __future__ import annotations

from typing import Any

from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

# What runs no code but torch's and that of OWN_FUNCTIONS.
SCHEDULES: frozenset[type] = frozenset(
    {
        lr_scheduler.ChainedScheduler,
        lr_scheduler.ConstantLR,
        lr_scheduler.CosineAnnealingLR,
        lr_scheduler.CosineAnnealingWarmRestarts,
        lr_scheduler.CyclicLR,
        lr_scheduler.ExponentialLR,
        lr_scheduler.LambdaLR,
        lr_scheduler.LinearLR,
        lr_scheduler.MultiStepLR,
        lr_scheduler.MultiplicativeLR,
        lr_scheduler.OneCycleLR,
        lr_scheduler.PolynomialLR,
        lr_scheduler.ReduceLROnPlateau,
        lr_scheduler.SequentialLR,
        lr_scheduler.StepLR,
        SWALR,
    }
)
# Attributes that hold a function of the program's, or a list of them.
OWN_FUNCTIONS = ("lr_lambdas", "_scale_fn_custom")
# Those whose step raises at its end.
MAY_RAISE: frozenset[type] = frozenset({lr_scheduler.OneCycleLR})
STEPS: tuple[Any, ...] = (
    lr_scheduler.LRScheduler.step,
    lr_scheduler.ChainedScheduler.step,
    lr_scheduler.CosineAnnealingWarmRestarts.step,
    lr_scheduler.ReduceLROnPlateau.step,
    lr_scheduler.SequentialLR.step,
)
