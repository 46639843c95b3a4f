"""What a forward's recording holds for its backward, lent to the recording of that backward.

    owner        a tensor that PyTorch's allocator knows; while it lives, nothing else that is
                 captured in this memory gets its block
    handed out   a tensor at the same address, which keeps the graph alive, and so the memory

A forward's recording keeps the owners of what is saved. The recording of the backward is made in
the same memory and takes the owners as its inputs: each goes with its last reader, and what comes
later lies where it was. So a step needs the memory that it needs where nothing is recorded.

Such a backward writes over what it reads. It is replayed only where nobody but its call refers to
that (no `retain_graph=True`, no tensor that the program got at); else another recording is used, or
the call runs as compiled. Its results are copied: they may be held when the forward comes again.

Who refers to a saved value holds its storage, by another tensor; the tensor, in C++, as autograd
does; or the Python object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.compat.cuda import is_alone, storage_at, storage_references
from braze.frozen import frozen

# Less is not worth the copies of the results.
LEAST_LENT = 64 << 20


@frozen
class Reference:
    """A storage, its identity, and how many references there are to it where only those who should
    have one."""

    storage: torch.UntypedStorage
    identity: int
    count: int

    def holds(self) -> bool:
        """Whether there are as many."""
        return storage_references(self.identity) == self.count


@final
@frozen
class Loan:
    """handle: of the memory; owners: by the identity of the storage that is handed out in their
    place; references: what there is to each where one call has them all."""

    handle: tuple[int, int]
    owners: dict[int, torch.UntypedStorage]
    references: tuple[Reference, ...]

    def borrowed(self, inputs: Sequence[Any]) -> list[int]:
        """Numbers of the inputs that lie in the memory."""
        return [n for n, x in enumerate(inputs) if identity(x) in self.owners]

    def take(self, inputs: list[Any]) -> None:
        """Put owners in the place of such inputs: with the last of these a block goes back."""
        for number in self.borrowed(inputs):
            given = inputs[number]
            inputs[number] = _at(self.owners[identity(given)], given)
        self.owners.clear()


@final
@dataclass(slots=True)
class HeldMemory:
    """What stays in a recording's memory. handle: of the memory; owners: as in a loan, none where
    they have been lent; references: to each while nobody else has it."""

    handle: tuple[int, int]
    owners: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)

    def lend(self, inputs: Sequence[Any], least: int) -> Loan | None:
        """The memory, for a call that reads what stays in it for the last time; None where
        somebody else refers to that, where it is lent, or less than so many bytes."""
        if not self.owners or sum(o.nbytes() for o in self.owners.values()) < least:
            return None
        readers = Counter(map(identity, inputs))
        wanted = [
            Reference(r.storage, r.identity, r.count + readers[r.identity]) for r in self.references
        ]
        read = [n for n, x in enumerate(inputs) if identity(x) in self.owners]
        if not all(reference.holds() for reference in wanted) or not are_alone(inputs, read):
            return None
        owners, self.owners = self.owners, {}
        return Loan(self.handle, owners, tuple(wanted))


def are_alone(inputs: Sequence[Any], numbers: Iterable[int]) -> bool:
    """Whether nobody but the sequence refers to these tensors."""
    return all(is_alone(inputs, number) for number in numbers)


def identity(value: Any) -> int:
    """What tells the storage of a tensor from others; 0 of what is none."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0


def handed_out(
    results: Mapping[int, torch.Tensor], elsewhere: Collection[int], keeper: object
) -> tuple[dict[int, torch.Tensor], dict[int, torch.UntypedStorage]]:
    """The results as tensors that do not own their memory, and by the identity of their storages,
    what owns it. elsewhere: addresses of storages that are not in the recording's memory: those
    are owned. keeper: is alive as long as one of the tensors."""
    found: dict[int, torch.UntypedStorage] = {}
    made: dict[int, torch.Tensor] = {}
    owners: dict[int, torch.UntypedStorage] = {}
    for number, result in results.items():
        owner = result.untyped_storage()
        address = owner.data_ptr()
        if not address or address in elsewhere:
            made[number] = result
            continue
        if address not in found:
            found[address] = storage_at(address, owner.nbytes(), result.device, keeper)
            owners[found[address]._cdata] = owner
        made[number] = _at(found[address], result)
    return made, owners


# --- private ---------------------------------------------------------------------------------


def _at(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A tensor that lies in the storage as another one does in its own."""
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    return made.set_(storage, like.storage_offset(), like.shape, like.stride())
