"""The row of NVIDIA's GPUs: Triton kernels, launched one by one or as a recorded graph."""

from __future__ import annotations

from collections.abc import Sequence

from braze.codegen import triton
from braze.devices.device import Device
from braze.ir.device_rates import MEASURES
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Schedule, Step
from braze.options import Options
from braze.runtime.cuda import device_rates
from braze.runtime.cuda.autotune import TUNING_MODES, choose_launches
from braze.runtime.cuda.autotune_matmul import quickest_way
from braze.runtime.cuda.cubin_cache import triton_version
from braze.runtime.link.link_cuda import link_device, paddings, prepare
from braze.schedule import ChooseProduct, Target, cuda_target


def _generate(plan: Schedule, options: Options) -> KernelSources:
    if options.mode not in TUNING_MODES:
        return triton.generate(plan, options)
    return triton.host_sources(plan, choose_launches(triton.alternatives(plan, options), options))


def _choose(options: Options, target: Target) -> ChooseProduct | None:
    """Those that tuning finds quicker."""
    if options.mode not in TUNING_MODES or options.numerics == "eager":
        return None

    def choose(ways: Sequence[tuple[Step, ...]]) -> int:
        return quickest_way(
            [triton.ways_to_run(steps, options, target.device) for steps in ways], options
        )

    return choose


MEASURES.register("cuda", device_rates.measure)
DEVICE = Device(
    target=cuda_target,
    choose=_choose,
    supports=triton.supports,
    generate=_generate,
    link=link_device,
    builds=lambda _: triton_version() is not None,
    paddings=paddings,
    prepare=prepare,
)
