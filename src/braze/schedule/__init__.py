"""Scheduling: which definitions share a kernel, in which loops, and where values are stored."""

from braze.schedule.matmul.matmul_fusion import ChooseProduct
from braze.schedule.passes import schedule
from braze.schedule.reductions.cooperative_reduction import cuda_target
from braze.schedule.target import CPU, CUDA, Target

__all__ = ["CPU", "CUDA", "ChooseProduct", "Target", "cuda_target", "schedule"]
