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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.compat.torch.cuda import are_alone, storage_at, storage_references
from braze.frozen import frozen

# Less is not worth the copies of the results.
LEAST_LENT = 64 << 20


@final
@dataclass(slots=True)
class References:
    """Storages, the identity of each, and how many references there are to it where only those who
    should have one."""

    storages: list[torch.UntypedStorage] = field(default_factory=list)
    identities: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def note(self, storage: torch.UntypedStorage) -> None:
        """Keep a storage, and how many references there are to it now."""
        identity = storage._cdata
        self.storages.append(storage)
        self.identities.append(identity)
        self.counts.append(storage_references(identity))

    def hold(self) -> bool:
        """Whether there are as many to each."""
        return [*map(storage_references, self.identities)] == self.counts

    def with_readers(self, readers: Mapping[int, int]) -> References:
        """The same with so many references more, by identities."""
        counts = [n + readers.get(at, 0) for at, n in zip(self.identities, self.counts)]
        return References(self.storages, self.identities, counts)


@final
@frozen
class Loan:
    """handle: of the memory; owners: by the identity of the storage that is handed out in their
    place; references: what there is to each where one call has them all."""

    handle: tuple[int, int]
    owners: dict[int, torch.UntypedStorage]
    references: References

    def borrowed(self, inputs: Sequence[object]) -> list[int]:
        """Numbers of the inputs that lie in the memory."""
        return [n for n, x in enumerate(inputs) if identity(x) in self.owners]

    def take(self, inputs: list[Any]) -> None:
        """Put owners in the place of such inputs: with the last of these a block goes back."""
        for number in self.borrowed(inputs):
            given = inputs[number]
            inputs[number] = lying_as(self.owners[identity(given)], given)
        self.owners.clear()


@final
@dataclass(slots=True)
class HeldMemory:
    """What stays in a recording's memory. handle: of the memory; owners: as in a loan, none where
    they have been lent; references: to each while nobody else has it."""

    handle: tuple[int, int]
    owners: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    references: References = field(default_factory=References)

    def lend(self, inputs: Sequence[Any], least: int) -> Loan | None:
        """The memory, for a call that reads what stays in it for the last time; None where
        somebody else refers to that, where it is lent, or less than so many bytes."""
        if not self.owners or sum(o.nbytes() for o in self.owners.values()) < least:
            return None
        wanted = self.references.with_readers(Counter(map(identity, inputs)))
        read = [x for x in inputs if identity(x) in self.owners]
        if not wanted.hold() or not are_alone(read):
            return None
        owners, self.owners = self.owners, {}
        return Loan(self.handle, owners, wanted)


def identity(value: object) -> int:
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
        made[number] = lying_as(found[address], result)
    return made, owners


def lying_as(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A tensor that lies in the storage as another one does in its own."""
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    return made.set_(storage, like.storage_offset(), like.shape, like.stride())
