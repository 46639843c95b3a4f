"""What the options of torch.compile's own backend, Inductor, mean to Braze.

A program that moves from `torch.compile(model, options={"max_autotune": True})` says the same
here. Some mean an option of Braze's own; some ask for what Braze does anyway, or steer what it has
no counterpart of, so that results are the same without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braze.errors import warn

_AUTOTUNED = {"mode": "max-autotune"}
_RECORDED = {"mode": "reduce-overhead"}
# An option that is set -> those of Braze's that say it.
_WHERE_SET: Mapping[str, dict[str, Any]] = {
    "max_autotune": _AUTOTUNED,
    "max_autotune_gemm": _AUTOTUNED,
    "max_autotune_pointwise": _AUTOTUNED,
    "triton.cudagraphs": _RECORDED,
    "freezing": {"freeze": True},
    "emulate_precision_casts": {"numerics": "eager"},
}
# An option that is not set (what it is for is on as Inductor begins, and here).
_WHERE_UNSET: Mapping[str, dict[str, Any]] = {
    "layout_optimization": {"skip_passes": ("prefer_channels_last",)},
    "shape_padding": {"skip_passes": ("align_products",)},
    "pattern_matcher": {"skip_passes": ("fuse_attention",)},
    "triton.cudagraphs": {"mode": "default"},
}
# What Braze does with or without them.
_ALWAYS_SO = frozenset(
    {
        *("allow_buffer_reuse", "dce", "epilogue_fusion", "fallback_random", "inplace_buffers"),
        *("permute_fusion", "reorder_for_locality", "size_asserts", "split_reductions"),
    }
)
# Options that steer what Braze has no counterpart of.
_WITHOUT_COUNTERPART = frozenset(
    {
        *("aggressive_fusion", "b2b_gemm_pass", "benchmark_fusion", "benchmark_kernel"),
        *("combo_kernels", "comment_origin", "conv_1x1_as_mm", "coordinate_descent_tuning"),
        *("cpp.enable_kernel_profile", "cpp.simdlen", "cpp.threads", "cpp_wrapper", "debug"),
        *("force_fuse_int_mm_with_mul", "fx_graph_cache", "group_fusion"),
        *("loop_ordering_after_fusion", "max_autotune_gemm_backends", "memory_planning"),
        *("realize_opcount_threshold", "realize_reads_threshold", "trace.enabled"),
        *("trace.graph_diagram", "triton.multi_kernel", "triton.persistent_reductions"),
        *("triton.tiling_prevents_pointwise_fusion", "triton.unique_kernel_names"),
        *("unroll_reductions_threshold", "use_mixed_mm"),
    }
)
INDUCTOR_OPTIONS = (
    frozenset(_WHERE_SET) | frozenset(_WHERE_UNSET) | _ALWAYS_SO | _WITHOUT_COUNTERPART
)


def in_brazes_words(options: Mapping[str, object]) -> dict[str, object]:
    """Options with those of Inductor's replaced by what they mean here; a BrazeWarning names those
    that mean nothing. What is given in Braze's own words goes before."""
    found: dict[str, Any] = {}
    unknown = []
    for name, value in options.items():
        if name not in INDUCTOR_OPTIONS:
            continue
        table = _WHERE_SET if value else _WHERE_UNSET
        for option, meaning in table.get(name, {}).items():
            known = found.get(option)
            found[option] = (*known, *meaning) if isinstance(known, tuple) else meaning
        if name in _WITHOUT_COUNTERPART:
            unknown.append(name)
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        warn(
            f"options of Inductor without a counterpart in Braze are left out: {names}. Results "
            "are the same without them; `braze.list_options()` has Braze's own."
        )
    return found | {n: v for n, v in options.items() if n not in INDUCTOR_OPTIONS}
