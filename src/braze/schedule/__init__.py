"""Scheduling: which definitions share a kernel, in which loops, and where values are stored."""

from braze.schedule.plan import schedule
from braze.schedule.products import ChooseProduct
from braze.schedule.spread import cuda_target
from braze.schedule.target import CPU, CUDA, Target

__all__ = ["CPU", "CUDA", "ChooseProduct", "Target", "cuda_target", "schedule"]
