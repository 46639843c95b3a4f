"""The arguments of a packaged call: their structure, and what is compared at each call.

`f(x, {"scale": s}, flag=True)` has the tensors x and s as leaves 0 and 1, by the structure

    {"x": {"leaf": 0}, "d": {"dict": [["scale", {"leaf": 1}]]}, "flag": {"value": true}}

Everything but the tensors is part of the program: another value is an error.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from braze.errors import PackageInputError, UserError
from braze.frozen import frozen
from braze.ir.generated_code import define
from braze.packages.nodes import InstanceParts, build, is_instance, parts_of
from braze.packages.values import decode, dtype_named, encode, is_same, is_value, name_of

TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CONTAINERS: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    dict: "dict",
    OrderedDict: "ordered_dict",
}
_CLASSES: dict[str, Any] = {name: cls for cls, name in _CONTAINERS.items()}


# --- structure -------------------------------------------------------------------------------


def describe(value: Any, path: str, leaves: list[tuple[str, torch.Tensor]]) -> dict[object, object]:
    """The structure of a value as JSON; its tensors are added to leaves. Raises UserError."""
    if type(value) in TENSORS:
        leaves.append((path, value))
        return {"leaf": len(leaves) - 1}
    if type(value) in (list, tuple):
        items = [describe(item, f"{path}[{n}]", leaves) for n, item in enumerate(value)]
        return {_CONTAINERS[type(value)]: items}
    if type(value) in (dict, OrderedDict) and all(map(is_value, value)):
        pairs = [
            [encode(key), describe(item, f"{path}[{key!r}]", leaves)] for key, item in value.items()
        ]
        return {_CONTAINERS[type(value)]: pairs}
    if is_value(value):
        return {"value": encode(value)}
    parts = parts_of(value, path)
    if parts is not None:
        items = [describe(child, _of_child(path, n), leaves) for n, child in _named(parts)]
        return {"node": [parts.data, parts.context, items]}
    raise UserError(
        f"braze.package: the argument {path} holds a {type(value).__qualname__}. A packaged call "
        "takes tensors, numbers, strings, None, and lists, tuples, dicts, named tuples and "
        "registered dataclasses (torch.export.register_dataclass) of them."
    )


def rebuild(structure: Any, leaves: Sequence[object]) -> object:
    """A value of that structure with these leaves."""
    ((kind, content),) = structure.items()
    if kind == "leaf":
        return leaves[content]
    if kind == "value":
        return decode(content)
    if kind == "node":
        data, context, items = content
        return build(data, [rebuild(item, leaves) for item in items], context)
    if kind in ("list", "tuple"):
        return _CLASSES[kind]([rebuild(item, leaves) for item in content])
    return _CLASSES[kind]([(decode(key), rebuild(item, leaves)) for key, item in content])


def collect(structure: Any, value: Any, path: str, leaves: list[torch.Tensor]) -> None:
    """Add the tensors of a value to leaves. Raises PackageInputError where it has another
    structure."""
    ((kind, content),) = structure.items()
    if kind == "leaf":
        if type(value) not in TENSORS:
            raise _other(path, "a tensor", value)
        leaves.append(value)
    elif kind == "value":
        expected = decode(content)
        if not is_same(expected, value):
            raise PackageInputError(
                f"{path} is {value!r}, and the package was made for {expected!r}: everything but "
                "tensors is part of the program. Package that call, too."
            )
    elif kind == "node":
        _collect_node(content, value, path, leaves)
    elif type(value) is not _CLASSES[kind] or not isinstance(value, (list, tuple, dict)):
        raise _other(path, f"a {_CLASSES[kind].__name__}", value)
    elif len(value) != len(content):
        raise _other(path, f"a {_CLASSES[kind].__name__} of length {len(content)}", value)
    elif isinstance(value, (list, tuple)):
        for number, (inner, item) in enumerate(zip(content, value)):
            collect(inner, item, f"{path}[{number}]", leaves)
    else:
        keys = [decode(key) for key, _ in content]
        if not all(is_same(key, own) for key, own in zip(keys, value)):
            raise _other(path, f"a dict with the keys {keys!r} in that order", value)
        for (_, inner), (key, item) in zip(content, value.items()):
            collect(inner, item, f"{path}[{key!r}]", leaves)


def _collect_node(
    content: Sequence[Any], value: Any, path: str, leaves: list[torch.Tensor]
) -> None:
    data, context, items = content
    parts = parts_of(value, path) if is_instance(value, data) else None
    if parts is None:
        raise _other(path, f"a {data[1]}", value)
    if not is_same(decode(parts.context), decode(context)) or len(parts.children) != len(items):
        raise PackageInputError(
            f"{path} has the registered context {decode(parts.context)!r}, and the package was "
            f"made for {decode(context)!r}."
        )
    for inner, (name, child) in zip(items, _named(parts)):
        collect(inner, child, _of_child(path, name), leaves)


def _named(parts: InstanceParts) -> list[tuple[str | int, object]]:
    """The children, with the names of a named tuple's."""
    names = parts.data[3] or range(len(parts.children))
    return list(zip(names, parts.children))


def _of_child(path: str, name: str | int) -> str:
    return f"{path}.{name}" if isinstance(name, str) else f"{path}[{name}]"


def _other(path: str, wanted: str, value: object) -> PackageInputError:
    length = f" of length {len(value)}" if isinstance(value, (list, tuple, dict)) else ""
    found = f"a {type(value).__qualname__}{length}"
    return PackageInputError(f"{path} is {found}, and the package was made for {wanted}.")


# --- signature -------------------------------------------------------------------------------


def signature_data(signature: inspect.Signature) -> list[list[object]]:
    """Name, kind and whether there is a default, of each parameter."""
    return [[p.name, int(p.kind), p.default is not p.empty] for p in signature.parameters.values()]


def signature_of(data: list[list[Any]]) -> inspect.Signature:
    """The signature again; its defaults say nothing."""
    kinds = list(inspect._ParameterKind)
    return inspect.Signature(
        [
            inspect.Parameter(name, kinds[kind], default=None if has_default else _NO_DEFAULT)
            for name, kind, has_default in data
        ]
    )


_NO_DEFAULT = inspect.Parameter.empty


def bind(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """The arguments of a call by parameter, without those left at their defaults. Raises
    TypeError as the call would."""
    return dict(signature.bind(*args, **kwargs).arguments)


# --- tensors ---------------------------------------------------------------------------------


@final
@frozen
class TensorCheck:
    """What is compared of a leaf. shape, stride: None where any number serves. offset: where the
    tensor begins in its storage, None for anywhere."""

    leaf: int
    path: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    offset: int | None = None

    def data(self) -> dict[str, object]:
        """As JSON."""
        return {
            "leaf": self.leaf,
            "path": self.path,
            "dtype": name_of(self.dtype),
            "device": str(self.device),
            "shape": list(self.shape),
            "stride": list(self.stride),
            "offset": self.offset,
        }

    @staticmethod
    def of(data: Mapping[str, Any]) -> TensorCheck:
        """From JSON."""
        return TensorCheck(
            data["leaf"],
            data["path"],
            dtype_named(data["dtype"]),
            torch.device(data["device"]),
            tuple(data["shape"]),
            tuple(data["stride"]),
            data["offset"],
        )

    def check(self, tensor: torch.Tensor) -> None:
        """Raises PackageInputError where the tensor is another one than the program is for."""
        if tensor.dtype is not self.dtype:
            raise self._unfit("dtype", tensor.dtype, self.dtype, f".to({self.dtype})")
        if tensor.device != self.device:
            raise self._unfit("device", tensor.device, self.device, f".to({str(self.device)!r})")
        if tensor.layout is not torch.strided:
            raise self._unfit("layout", tensor.layout, torch.strided, ".to_dense()")
        if tensor.is_conj() or tensor.is_neg():
            raise self._unfit("memory", "a lazy conjugate", "as it is", ".resolve_conj()")
        shape = tuple(tensor.shape)
        if not _fits(self.shape, shape):
            raise self._unfit("shape", shape, _shown(self.shape), "")
        stride = tensor.stride()
        if not _fits(self.stride, stride):
            raise self._unfit("strides", stride, _shown(self.stride), "")
        if self.offset is not None and tensor.storage_offset() != self.offset:
            raise self._unfit("offset", tensor.storage_offset(), self.offset, ".clone()")

    def _unfit(self, what: str, found: object, wanted: object, cure: str) -> PackageInputError:
        hint = f" {self.path}{cure} would fit." if cure else ""
        return PackageInputError(
            f"the {what} of {self.path} is {found}, and the package was made for {wanted}.{hint}"
        )


def compile_conditions(conditions: Sequence[Sequence[str]]) -> Callable[[object], str | None]:
    """What gives the first condition on the leaves' sizes that does not hold, in words.
    conditions: the Python text of each, over `x`, the list of leaves, and its words."""
    lines = [f"    if not ({text}): return {says!r}" for text, says in conditions]
    text = "\n".join(["def unmet(x):", *lines, "    return None"])
    unmet: Callable[[Any], str | None] = define([text], "<conditions of a package>", {})
    return unmet


# --- private ---------------------------------------------------------------------------------


def _fits(expected: tuple[int | None, ...], found: Sequence[int]) -> bool:
    if len(expected) != len(found):
        return False
    return all(want is None or want == have for want, have in zip(expected, found))


def _shown(sizes: tuple[int | None, ...]) -> str:
    inside = ", ".join("any" if size is None else str(size) for size in sizes)
    return f"({inside},)" if len(sizes) == 1 else f"({inside})"
