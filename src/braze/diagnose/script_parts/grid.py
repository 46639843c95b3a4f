"""Memory by elements: `b[i, j]` loads at grids of indices, `b[i, j] = value` stores there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Of each side of a condition that is being computed: where that side is taken.
TAKEN: list[torch.Tensor] = []


class Memory:
    """A buffer. A load outside of it is an error, unless a condition leaves it out."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, at: object) -> torch.Tensor:
        if at == ():
            return self.tensor
        places, inside = self.places(at)
        outside = ~inside if not TAKEN else ~inside & TAKEN[-1]
        if outside.any():
            raise IndexError(f"a load leaves a buffer of shape {tuple(self.tensor.shape)}")
        if 0 in self.tensor.shape:
            return self.tensor.new_zeros(()).expand(places[0].shape)
        limits = [size - 1 for size in self.tensor.shape]
        return self.tensor[tuple([p.clamp(0, most) for p, most in zip(places, limits)])]

    def __setitem__(self, at: Any, value: torch.Tensor) -> None:
        if value.dtype != self.tensor.dtype:
            raise TypeError(f"{value.dtype} is stored in {self.tensor.dtype}")
        if at == ():
            self.tensor.copy_(value.reshape(()))
            return
        places, inside = self.places(at, value)
        if not inside.all():
            raise IndexError(f"a store leaves a buffer of shape {tuple(self.tensor.shape)}")
        self.tensor[tuple(places)] = value.expand(places[0].shape)

    def scatter(self, at: object, value: torch.Tensor, points: Any, adds: bool) -> None:
        """Store, or add, at places that are looked up; points: the sizes of the loops."""
        places, inside = self.places(at, value)
        if not inside.all():
            raise IndexError(f"a scatter leaves a buffer of shape {tuple(self.tensor.shape)}")
        flat = [p.expand(points).reshape(-1) for p in places]
        self.tensor.index_put_(tuple(flat), value.expand(points).reshape(-1), accumulate=adds)

    def places(self, at: object, *others: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """One grid a coordinate, of one shape; and which points of it are inside."""
        at = at if isinstance(at, tuple) else (at,)
        grids = [torch.as_tensor(each) for each in at]
        shape = torch.broadcast_shapes(*[grid.shape for grid in (*grids, *others)])
        places = [grid.expand(shape) for grid in grids]
        inside = torch.ones(shape, dtype=torch.bool, device="cpu")
        for place, size in zip(places, self.tensor.shape, strict=True):
            inside = inside & (place >= 0) & (place < size)
        return places, inside

    def at(self, offset: torch.Tensor) -> torch.Tensor:
        """The elements so far behind the first one."""
        count = int(offset.max()) + 1 if offset.numel() else 0
        return self.tensor.as_strided((count,), (1,), self.tensor.storage_offset())[offset]

    def view(self, shape: Any, stride: Any, offset: int, dtype: torch.dtype) -> torch.Tensor:
        """`as_strided` in elements of the dtype, from the buffer's first element."""
        tensor = self.tensor
        if dtype == tensor.dtype:
            return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
        offset += tensor.storage_offset() * tensor.element_size() // dtype.itemsize
        again = torch.empty(0, dtype=dtype, device=tensor.device)
        return again.set_(tensor.untyped_storage(), offset, shape, stride)


def empty(shape: Any, stride: Any, dtype: torch.dtype, where: str) -> Memory:
    """A buffer without contents."""
    return Memory(torch.empty_strided(shape, stride, dtype=dtype, device=where))


def grid(*sizes: int) -> list[torch.Tensor]:
    """The indices of each loop, along a dimension of its own."""
    ones = [1] * len(sizes)
    return [
        torch.arange(size, device="cpu").reshape([*ones[:n], size, *ones[n + 1 :]])
        for n, size in enumerate(sizes)
    ]


def literal(value: object, dtype: torch.dtype) -> torch.Tensor:
    """A constant."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def index(value: object) -> torch.Tensor:
    """An index as a number."""
    return torch.as_tensor(value, dtype=torch.int64)


def most(*values: object) -> torch.Tensor:
    """The greatest of indices."""
    return index(values[0]) if len(values) == 1 else index(values[0]).maximum(most(*values[1:]))


def least(*values: object) -> torch.Tensor:
    """The least of indices."""
    return index(values[0]) if len(values) == 1 else index(values[0]).minimum(least(*values[1:]))


def guarded(
    condition: torch.Tensor,
    value: Callable[[], torch.Tensor],
    other: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """`value` where the condition holds, else `other`; neither is computed anywhere else."""
    sides = []
    for side, taken in ((value, condition), (other, ~condition)):
        TAKEN.append(taken & TAKEN[-1] if TAKEN else taken)
        sides.append(side())
        TAKEN.pop()
    return torch.where(condition, sides[0], sides[1])


def checked(value: torch.Tensor, size: int) -> torch.Tensor:
    """An index that the program checks."""
    outside = (value < 0) | (value >= size)
    if (outside & TAKEN[-1] if TAKEN else outside).any():
        raise IndexError(f"an index is out of bounds for dimension with size {size}")
    return value


def fold(
    kind: str, body: torch.Tensor, over: dict[int, int], dtype: torch.dtype, position: object = None
) -> torch.Tensor:
    """A fold over dimensions of the grid, which stay, of size 1. over: their sizes; position: what
    argmax and argmin give of the point that they find."""
    shape = [*body.shape] or [1] * (1 + max(over, default=0))
    for dim, size in over.items():
        shape[dim] = size
    kept = [1 if dim in over else size for dim, size in enumerate(shape)]
    rows = [size for dim, size in enumerate(shape) if dim not in over]

    def lined_up(values: torch.Tensor) -> torch.Tensor:
        moved = values.expand(shape).movedim([*over], [*range(len(rows), len(shape))])
        return moved.reshape([*rows, -1] if moved.numel() else [*rows, 0])

    flat = lined_up(body)
    if kind in ("sum", "prod"):
        summed: torch.Tensor = getattr(flat, kind)(-1, dtype=dtype)
        return summed.reshape(kept)
    found: torch.Tensor = getattr(flat, {"max": "amax", "min": "amin"}.get(kind, kind))(-1)
    if position is not None:
        found = lined_up(index(position)).gather(-1, found.unsqueeze(-1))
    return found.reshape(kept)


def column(value: torch.Tensor, rows: Any, points: Any, block: int) -> torch.Tensor:
    """Sums over each block of rows, at every point of a row."""
    value = value.expand([*rows, *points]).reshape([-1, *points])
    missing = -len(value) % block
    value = torch.cat([value, value.new_zeros([missing, *points])])
    return value.reshape([-1, block, *points]).sum(1)


def softmax(score: torch.Tensor, empty_is_zero: bool) -> torch.Tensor:
    """Over the last dimension. empty_is_zero: where all is -inf."""
    made = score.softmax(-1)
    return (
        made.masked_fill(score.amax(-1, keepdim=True) == -torch.inf, 0) if empty_is_zero else made
    )


def fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x * y + z."""
    return torch.addcmul(z, x, y)


def exponent(x: torch.Tensor) -> torch.Tensor:
    """The exponent of a float, as a float."""
    return torch.frexp(x).exponent.to(x.dtype)


def extern(op: Any, args: list[Any], kwargs: dict[str, Any], made: list[Any]) -> list[object]:
    """Call an operator; what it writes to is cloned first and returned last. made: shape, stride
    and dtype of each result; ... where they are as they come."""
    clones = []
    for n, argument in enumerate(op._schema.arguments):
        info = argument.alias_info
        holder: Any = args if n < len(args) else kwargs
        key: Any = n if n < len(args) else argument.name
        if info is None or not info.is_write or (holder is kwargs and key not in kwargs):
            continue
        given = holder[key]
        if given is not None:
            holder[key] = [t.clone() for t in given] if isinstance(given, list) else given.clone()
            clones.append(holder[key])
    returned = op(*args, **kwargs)
    if op._schema.is_mutable:
        listed = returned if isinstance(returned, tuple) else (returned,)
        pairs = zip(listed, op._schema.returns)
        returned = [*[r for r, d in pairs if d.alias_info is None], *clones]
    results: list[Any] = []
    for result, kind in zip(flat(returned), made):
        if kind is None or result is None:
            results.append(None)
            continue
        if kind is ...:
            results.append(Memory(result.contiguous()))
            continue
        shape, stride, dtype = kind
        tensor = torch.as_tensor(result, dtype=dtype)
        memory = Memory(torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device))
        memory.tensor.copy_(tensor)
        results.append(memory)
    return results


def flat(results: object) -> list[Any]:
    """What a call returned, in order."""
    if isinstance(results, (list, tuple)):
        return [leaf for item in results for leaf in flat(item)]
    return [results]
