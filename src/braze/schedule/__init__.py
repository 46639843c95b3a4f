"""Scheduling: which definitions share a kernel, in which loops, and where values are stored."""

from braze.schedule.bind_inputs import bind_inputs
from braze.schedule.matmul.matmul_fusion import ChooseProduct
from braze.schedule.passes import FUSION, Arrangement, lay_out, schedule, schedule_blocks
from braze.schedule.reductions.cooperative_reduction import cuda_target
from braze.schedule.target import CPU, CUDA, Target

__all__ = [
    "CPU",
    "CUDA",
    "FUSION",
    "Arrangement",
    "ChooseProduct",
    "Target",
    "bind_inputs",
    "cuda_target",
    "lay_out",
    "schedule",
    "schedule_blocks",
]
