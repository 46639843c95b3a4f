"""Results with their conjugate or negative bit set are views in one graph, as in eager."""

from __future__ import annotations

import pytest
import torch

import braze

PROGRAMS = {
    "conjugate": lambda z: z.conj(),
    "adjoint": lambda z: z.mH,
    "row": lambda z: z.conj()[0],
    "of a result": lambda z: (z * 2).conj(),
    "adjoint of a result": lambda z: (z * 2).H,
    "columns": lambda z: (z + 1).mH[:, :1],
    "beside its source": lambda z: (z.conj(), z * 2, z),
    "twice": lambda z: (z.conj(), z.conj().t()),
    "of both": lambda z: (y := z * 2, y.conj(), y.sum()),
    "used and returned": lambda z: (c := z.conj(), (c * z).real.sum()),
    "negative": lambda z: torch._neg_view(z * 2),
    "of a view": lambda z: z[1:].conj(),
    "in a dict": lambda z: {"a": [z.mH], "b": z.abs()},
    "without gradients": lambda z: torch.no_grad()(lambda: (z * 1).conj())(),
    "detached": lambda z: z.detach().conj(),
    "there and back": lambda z: z.conj().conj(),
}


def facts(tensor, z):
    storage = tensor.untyped_storage().data_ptr()
    return (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.requires_grad,
        tensor.grad_fn is None or tensor.grad_fn.name() in ("ConjBackward0", "NegViewBackward0"),
        storage == z.untyped_storage().data_ptr(),
    )


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_whose_results_have_the_bit(journal, name, gradients):
    program = PROGRAMS[name]
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    flat = torch.utils._pytree.tree_leaves
    for count in (3, 3, 5):
        z = torch.randn(count, count, dtype=torch.complex64, requires_grad=gradients)
        found, wanted = flat(compiled(z)), flat(program(z))
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
            if one.is_complex():
                left, right = facts(one, z), facts(other, z)
                assert left[:6] == right[:6] and left[7] == right[7]
        if gradients and any(one.requires_grad for one in wanted):
            derived = []
            for results in (found, wanted):
                loss = sum(one.abs().pow(2).sum() for one in results if one.requires_grad)
                derived.append(torch.autograd.grad(loss, z)[0])
            assert torch.allclose(*derived)
    assert not journal.fallbacks()
    assert {record.outcome for record in journal.records()} <= {"graph", "backward"}


def test_a_write_to_the_source_is_seen():
    compiled = braze.compile(lambda z: (y := z * 2, y.conj()), backend="aot_eager", fullgraph=True)
    z = torch.randn(3, dtype=torch.complex64)
    source, conjugate = compiled(z)
    source.fill_(1 + 2j)
    assert torch.equal(conjugate, torch.full((3,), 1 - 2j))
    conjugate.zero_()
    assert not source.any()


def test_a_conjugate_of_an_argument_is_written_through():
    def program(z):
        z.add_(1)
        return z.conj()

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    z = torch.zeros(3, dtype=torch.complex64)
    compiled(z).add_(2j)
    assert torch.equal(z, torch.full((3,), 1 - 2j))


def test_a_break_behind_a_conjugate_keeps_it():
    def program(z):
        c = z.conj()
        print("", end="")
        z.mul_(2)
        return c + 1, c

    z = torch.randn(3, dtype=torch.complex64)
    other = z.clone()
    found, wanted = braze.compile(program, backend="aot_eager")(z), program(other)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert found[1].is_conj() and torch.equal(z, other)
