"""Kernels of Triton's that tests launch, and functions around them as PyTorch's guides write them.

Loaded by `test_triton_kernels.py` where Triton interprets its functions, never imported.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def subtract_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) - tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def scale_kernel(x_ptr, n, by, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * by, mask=mask)


@triton.jit
def put(pointer, value, mask):  # type: ignore[no-untyped-def]
    tl.store(pointer, value, mask=mask)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, step, out_step, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    found = tl.load(x_ptr + row * step + offsets, mask=mask, other=-float("inf"))
    powers = tl.exp(found - tl.max(found, 0))
    put(out_ptr + row * out_step + offsets, powers / tl.sum(powers, 0), mask)


def _bench(call: Any, quantiles: Any) -> list[float]:
    call()
    return [1.0, 1.0, 1.0]


add_tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": 4}, num_warps=2), triton.Config({"BLOCK": 16})],
    key=["n"],
    do_bench=_bench,
)(add_kernel)
add_sized = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(add_kernel)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = out.numel()

    def grid(meta: Any) -> Any:
        return (triton.cdiv(n, meta["BLOCK"]),)

    add_kernel[grid](x, y, out, n, BLOCK=4)
    return out


def add_by_tuple(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 8),)](x.sin(), y * 2, out, x.numel(), 8, num_warps=4)
    return out.cos() + x


def add_autotuned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, n=x.numel())
    return out * 2


def add_by_heuristics(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_sized[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out * 2


def softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    steps = x.stride(0), out.stride(0)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], *steps, BLOCK=block)
    return out


def scale(x: Tensor, by: float) -> None:
    scale_kernel[(triton.cdiv(x.numel(), 4),)](x, x.numel(), by, BLOCK=4)


def scale_in_order(x: Tensor, y: Tensor) -> Any:
    a = x + 1
    before = a * 2
    scale(a, 2.0)
    between = a * 2
    scale(a[1:3], 3.0)
    return a, before, between, a.sum()


def scale_views_of_inputs(x: Tensor, y: Tensor) -> Any:
    view = x[1:]
    before = view * 2
    scale(view, 2.0)
    after = x + before.sum()
    scale(x, 0.5)
    return after, view


def add_in_one_memory(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.zeros(2, x.numel(), device=x.device)
    add_kernel[(1,)](rows[0], x, rows[1], x.numel(), 64)
    add_kernel[(1,)](rows[1], rows[1], rows[0], x.numel(), BLOCK=64)
    add_kernel[(1,)](rows[0], y, rows[0], x.numel(), BLOCK=64)
    return rows


def softmax_of_columns(x: Tensor, y: Tensor) -> Any:
    wide = torch.zeros(3, 2 * x.numel() + 1, device=x.device)
    source = torch.stack([x, y, x * y])
    target = wide[:, 1 : 1 + x.numel()]
    steps = source.stride(0), target.stride(0)
    softmax_kernel[(3,)](source, target, x.numel(), *steps, BLOCK=32)
    return wide, target + 1


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return add(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return add(gradient.contiguous(), x), gradient * 3


def train(x: Tensor, y: Tensor) -> Tensor:
    return Sum.apply(x.sin(), y) * y  # type: ignore[no-any-return, no-untyped-call]


@torch.library.triton_op("braze_triton_programs::added", mutates_args={})
def added(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 16),)
    torch.library.wrap_triton(add_kernel)[grid](x, y, out, x.numel(), 16)
    return out


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _added_backward(ctx: Any, gradient: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return added(gradient.contiguous(), x), gradient * y.cos()


added.register_autograd(_added_backward, setup_context=_keep)


@torch.library.triton_op("braze_triton_programs::scaled_", mutates_args={"x"})
def scaled_(x: Tensor, by: float) -> None:
    grid = (triton.cdiv(x.numel(), 4),)
    torch.library.wrap_triton(scale_kernel)[grid](x, x.numel(), by, BLOCK=4)


def call_operator(x: Tensor, y: Tensor) -> Tensor:
    return added(x.exp(), y) + 1


def call_writing_operator(x: Tensor, y: Tensor) -> Tensor:
    a = x + 1
    scaled_(a[1:], 2.0)
    scaled_(y, 3.0)
    return a + x


# --- forms of kernels by what they write to ------------------------------------------------------


@triton.jit
def by_blocks(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    source = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (16,), (0,))
    target = tl.make_block_ptr(
        base=out_ptr, shape=(n,), strides=(1,), offsets=(0,), block_shape=(16,), order=(0,)
    )
    for _ in range(n):
        tl.store(target, tl.load(source))
        source, target = tl.advance(source, (16,)), tl.advance(target, (16,))


@triton.jit
def by_descriptors(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    source = tl.make_tensor_descriptor(x_ptr, [n, n], [n, 1], [16, 16])
    target = tl.make_tensor_descriptor(out_ptr, [n, n], [n, 1], [16, 16])
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def by_atomics(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + tl.load(index_ptr + offsets), tl.load(x_ptr + offsets))


@triton.jit
def by_turns(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    source, target = x_ptr, out_ptr
    for k in range(n):
        tl.store(target + k, tl.load(source + k))
        source, target = target, source


@triton.jit
def by_another(x_ptr, out_ptr, function: tl.constexpr):  # type: ignore[no-untyped-def]
    function(x_ptr)
    put(value=tl.load(x_ptr), pointer=out_ptr, mask=True)
