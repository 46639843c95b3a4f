"""A captured call as data: where the graph's inputs are found, what is compared at each call, and
what is returned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch

from braze.errors import UserError
from braze.frozen import frozen
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.frame import (
    CapturedCall,
    CapturedFrame,
    Effect,
    FillInstance,
    FromConstant,
    FromGraph,
    FromSizes,
    FromSource,
    NewDict,
    NewInstance,
    NewSequence,
    Recipe,
    ReplaceContents,
    Return,
    SetItem,
)
from braze.ir.captured.guard import GuardKind, SizeCondition
from braze.ir.captured.source import (
    AttributeSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    SizeSource,
    Source,
    StrideSource,
    operands_of,
    root_of,
)
from braze.packages.arguments import TensorCheck, describe
from braze.packages.nodes import class_data, is_named_tuple, leaves_out, parts_of
from braze.packages.results import DICTS, SEQUENCES
from braze.packages.values import encode, is_value
from braze.runtime.guards.codegen import access
from braze.shapes.binding import python_text
from braze.shapes.expr import Expr, Symbol


@final
class CapturedPlaces:
    """Where a call finds what capture found at sources: among the leaves of its arguments, or among
    the tensors of the package."""

    def __init__(
        self,
        name: str,
        values: FrameValues,
        bound: int,
        arguments: Mapping[str, object],
        add: Callable[[torch.Tensor, str], int],
    ) -> None:
        """values: of the frame; bound: how many of its first locals the package has. add: gives
        the number of a tensor of the package."""
        self.name, self._values, self._add = name, values, add
        self._own = frozenset([*values.locals][:bound])
        leaves: list[tuple[str, torch.Tensor]] = []
        self.structure = {key: describe(value, key, leaves) for key, value in arguments.items()}
        self.paths = [path for path, _ in leaves]
        self._leaves: dict[int, int] = {}
        self.same: list[tuple[int, int]] = []
        for number, (_, leaf) in enumerate(leaves):
            first = self._leaves.setdefault(id(leaf), number)
            if first != number:
                self.same.append((first, number))

    def value(self, source: Source) -> Any:
        """What was there when the call was captured."""
        operands = [self.value(operand) for operand in operands_of(source)]
        return access(source, self._values, operands)

    def is_argument(self, source: Source) -> bool:
        """Whether a source is, or is reached through, an argument of the packaged call."""
        root = root_of(source)
        return isinstance(root, LocalSource) and root.name not in self._own

    def leaf(self, source: Source) -> int | None:
        """The number of an argument's tensor."""
        return self._leaves.get(id(self.value(source))) if self.is_argument(source) else None

    def place(self, source: Source) -> tuple[str, int]:
        """Where a tensor is found. Raises UserError for one that no call could give."""
        value = self.value(source)
        if self.is_argument(source):
            found = self._leaves.get(id(value))
            if found is None:
                raise self.refused(f"{source} is read, which is no argument, nor an item of one")
            return "leaf", found
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise self.refused(f"{source} is a {type(value).__qualname__}")
        return "tensor", self._add(value, str(source))

    def number(self, source: Source) -> str:
        """A number as Python text over the leaves `x`: a size of one, or what it was."""
        if isinstance(source, (SizeSource, StrideSource)):
            leaf = self.leaf(source.base)
            if leaf is not None:
                method = "size" if isinstance(source, SizeSource) else "stride"
                return f"x[{leaf}].{method}({source.dim})"
        value = self.value(source)
        if type(value) not in (int, bool):
            raise self.refused(f"the number {source} is part of the graph's inputs")
        return repr(value)  # compared with the example's, or the package's own

    def text(self, expr: Expr, sources: Iterable[tuple[Symbol, Source]]) -> str:
        """An expression as Python text over the leaves `x`."""
        return python_text(expr, {symbol: f"{self.number(source)}" for symbol, source in sources})

    def refused(self, reason: str, where: object = None) -> UserError:
        """What is raised for a call that a package cannot hold."""
        place = "" if where is None else f"{where}: "
        return UserError(f"braze.package: {place}{self.name} cannot be packaged: {reason}.")


@final
class PackagedCall:
    """What a package says of a captured call, its graph apart."""

    def __init__(self, captured: CapturedFrame, places: CapturedPlaces) -> None:
        self._captured, self._places = captured, places
        self._nodes: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._fills: dict[int, FillInstance] = {}

    def data(self) -> dict[str, object]:
        """As JSON. Raises UserError for what a package cannot hold."""
        captured, places = self._captured, self._places
        if captured.draws:
            raise places.refused("it draws random numbers of Python's or NumPy's: draw torch's")
        if captured.dropped or captured.switched:
            raise places.refused("it changes whether inputs need gradients")
        count = len(captured.graph.inputs)
        self._fills = {id(e.target): e for e in captured.effects if isinstance(e, FillInstance)}
        updates = [update for effect in captured.effects for update in self._update(effect)]
        assert isinstance(captured.exit, Return), captured.exit
        self._node(captured.exit.value)
        return {
            "structure": {"arguments": places.structure},
            "inputs": [places.place(source) for source in captured.inputs[:count]],
            "numbers": [places.number(source) for source in captured.inputs[count:]],
            "same": places.same,
            **self._guards(),
            "truths": [[check.result, check.holds, str(check.origin)] for check in captured.checks],
            "updates": updates,
            "result": self._nodes,
        }

    # --- guards ------------------------------------------------------------------------------

    def _guards(self) -> dict[str, object]:
        """What is compared at each call: of the arguments. What the program read elsewhere is as it
        was when it was packaged."""
        places = self._places
        checks: dict[int, TensorCheck] = {}
        offsets: dict[int, int] = {}
        conditions: dict[str, str] = {}
        sharing: list[list[tuple[str, int]]] = []
        distinct: set[int] = set()
        for guard in self._captured.guards:
            kind, expected = guard.kind, guard.expected
            if kind is GuardKind.SIZES:
                says, text = self._condition(expected)
                conditions[text] = says
            elif kind is GuardKind.STORAGE_OVERLAP:
                sharing = [[places.place(source) for source in group] for group in expected]
            elif kind is GuardKind.DISTINCT:
                distinct |= {n for n in map(places.leaf, expected) if n is not None}
            elif guard.source is not None and places.is_argument(guard.source):
                self._check_told(guard.source)
                leaf = places.leaf(guard.source)
                if kind is GuardKind.TENSOR_MATCH and leaf is not None:
                    sizes = (tuple(expected.shape), tuple(expected.stride))
                    facts = (expected.dtype, expected.device, *sizes)
                    checks[leaf] = TensorCheck(leaf, places.paths[leaf], *facts)
                elif kind is GuardKind.STORAGE_OFFSET and leaf is not None:
                    offsets[leaf] = expected
                elif kind not in _IMPLIED:
                    raise places.refused(
                        f"what it asks of {guard.source} cannot be asked again ({kind.value})",
                        guard.origin,
                    )
        has_leaf = any(kind == "leaf" for group in sharing for kind, _ in group)
        return {
            "checks": [
                {**check.data(), "offset": offsets.get(leaf)} for leaf, check in checks.items()
            ],
            "conditions": [[text, says] for text, says in conditions.items()],
            "sharing": sharing if has_leaf else [],
            "distinct": sorted(distinct) if len(distinct) > 1 else [],
        }

    def _check_told(self, source: Source) -> None:
        """Refuse what a registered class keeps beside its children: no call compares it."""
        while operands := operands_of(source):
            base = operands[0]
            name = getattr(source, "name", None) or getattr(source, "key", None)
            if isinstance(base, InstanceDictSource):
                base = operands_of(base)[0]
            if isinstance(name, str) and leaves_out(self._places.value(base), name):
                raise self._places.refused(
                    f"it reads {source}, which the function that is registered for its class does "
                    "not tell"
                )
            source = base

    def _condition(self, condition: SizeCondition) -> tuple[str, str]:
        """In words, and as Python text over the leaves."""
        text = self._places.text(condition.expr, condition.sources)
        parts = [f"{text} != 0"] if condition.apart else []
        parts += [] if condition.lower is None else [f"{text} >= {condition.lower}"]
        parts += [] if condition.upper is None else [f"{text} <= {condition.upper}"]
        return _readable(str(condition)), " and ".join(parts) or "True"

    # --- writes ------------------------------------------------------------------------------

    def _update(self, effect: Effect) -> list[tuple[int, int]]:
        """Which tensor of the package becomes which result of the graph."""
        places = self._places
        if isinstance(effect, FillInstance) and isinstance(effect.target, NewInstance):
            if _is_node(effect.target):
                return []  # part of the result
            raise places.refused(f"it makes {_words(effect.target)}, {_HELD}")
        if isinstance(effect, ReplaceContents) and isinstance(effect.target, FromSource):
            before = places.value(effect.target.source)
            if isinstance(before, set) and _constants(effect.contents) == before:
                return []  # what `nn.Module.__setattr__` does to its set of buffers' names
        if isinstance(effect, SetItem) and (name := _buffer_name(effect)) is not None:
            space, value = effect.target, effect.value
            assert isinstance(space, FromSource)
            before = places.value(space.source).get(name)
            source = ItemSource(space.source, name)
            if isinstance(value, FromSource) and places.value(value.source) is before:
                return []  # what `self.total += x` ends with
            if isinstance(value, FromGraph) and isinstance(before, torch.Tensor):
                self._check_same_type(before, value.index, source)
                return [(places.place(source)[1], value.index)]
        raise places.refused(f"it writes to an object of the program: {_words(effect)}")

    def _check_same_type(self, before: torch.Tensor, index: int, source: Source) -> None:
        made: Any = self._captured.graph.outputs[index].value.type
        facts = (before.dtype, tuple(before.shape), tuple(before.stride()))
        if facts != (made.dtype, tuple(made.shape), tuple(made.stride)):
            raise self._places.refused(
                f"{source} gets a tensor of another type, {made}, for which the next call would "
                "not be compiled: write into the buffer"
            )

    # --- results -----------------------------------------------------------------------------

    def _node(self, recipe: Recipe) -> int:
        """The number of the node of a recipe."""
        if id(recipe) not in self._numbers:
            made = self._made(recipe)
            self._nodes.append(made)
            self._numbers[id(recipe)] = len(self._nodes) - 1
        return self._numbers[id(recipe)]

    def _made(self, recipe: Recipe) -> list[object]:
        places = self._places
        if isinstance(recipe, FromGraph):
            return ["graph", recipe.index]
        if isinstance(recipe, FromConstant) and is_value(recipe.value):
            return ["value", encode(recipe.value)]
        if isinstance(recipe, FromSizes):
            return ["size", places.text(recipe.expr, recipe.sources)]
        if isinstance(recipe, FromSource):
            value = places.value(recipe.source)
            if isinstance(value, torch.Tensor):
                return list(places.place(recipe.source))
            if is_value(value) and not isinstance(value, (list, tuple)):
                return ["value", encode(value)]
        if isinstance(recipe, NewSequence) and recipe.cls in SEQUENCES:
            return [SEQUENCES[recipe.cls], [self._node(item) for item in recipe.items]]
        if isinstance(recipe, NewSequence) and recipe.cls.__module__ == "torch.return_types":
            items = [self._node(item) for item in recipe.items]
            return ["return_type", [recipe.cls.__name__, items]]
        if isinstance(recipe, NewSequence) and is_named_tuple(recipe.cls):
            items = [self._node(item) for item in recipe.items]
            return ["node", [class_data(recipe.cls), None, items]]
        if isinstance(recipe, NewInstance) and _is_node(recipe):
            return self._instance(recipe)
        if isinstance(recipe, NewDict) and recipe.cls in DICTS:
            pairs = [[self._node(key), self._node(value)] for key, value in recipe.items]
            return [DICTS[recipe.cls], pairs]
        raise places.refused(f"it returns {_words(recipe)}, {_HELD}")

    def _instance(self, recipe: NewInstance) -> list[object]:
        """An instance of a registered class: its registered function takes apart one that holds
        recipes."""
        cls: Any = recipe.cls
        made = cls.__new__(cls)
        fill = self._fills.get(id(recipe))
        if fill is not None:
            for name, value in fill.attributes:
                made.__dict__[name] = _held(value)
            for slot, value in fill.slots:
                slot.__set__(made, _held(value))
            for key, value in fill.dict_items or ():
                base = OrderedDict if isinstance(made, OrderedDict) else dict
                base.__setitem__(made, _held(key), _held(value))
            if fill.list_items is not None:
                list.extend(made, map(_held, fill.list_items))
        parts = parts_of(made, "the result")
        assert parts is not None
        items = []
        for child in parts.children:
            held = child if isinstance(child, _RecipeLeaf) else _RecipeLeaf(FromConstant(child))
            items.append(self._node(held.recipe))
        return ["node", [parts.data, parts.context, items]]


# --- private -------------------------------------------------------------------------------------

_HELD = (
    "and a package holds tensors, numbers, strings, None, and lists, tuples, dicts, named tuples "
    "and registered dataclasses (torch.export.register_dataclass) of them"
)

# Of arguments, what follows from their structure, which each call compares as a whole.
_IMPLIED = frozenset(
    {
        GuardKind.TYPE_MATCH,
        GuardKind.ID_MATCH,
        GuardKind.EQUALS_MATCH,
        GuardKind.COMPARES,
        GuardKind.LENGTH,
        GuardKind.DICT_KEYS,
        GuardKind.DICT_CONTAINS,
        GuardKind.DICT_LACKS,
        GuardKind.HAS_ATTRIBUTE,
        GuardKind.CLASS_LOOKUPS,
        GuardKind.SAME_OBJECT,
        GuardKind.DIFFERENT_OBJECT,
        GuardKind.VIEW,
    }
)


@final
@frozen(eq=False)
class _RecipeLeaf:
    """A recipe in the place of what it makes."""

    recipe: Recipe


def _held(recipe: Recipe) -> object:
    return recipe.value if isinstance(recipe, FromConstant) else _RecipeLeaf(recipe)


def _is_node(recipe: Recipe) -> bool:
    return isinstance(recipe, NewInstance) and class_data(recipe.cls) is not None


def _readable(condition: str) -> str:
    """`2 <= L['x'].size()[0]` as people write it."""
    return condition.replace("L['", "").replace("']", "")


def _buffer_name(effect: SetItem) -> str | None:
    """The name of a module's buffer that is set to another tensor."""
    target = effect.target.source if isinstance(effect.target, FromSource) else None
    is_space = (
        isinstance(target, ItemSource)
        and target.key == "_buffers"
        and isinstance(target.base, InstanceDictSource)
    ) or (isinstance(target, AttributeSource) and target.name == "_buffers")
    key = effect.key.value if isinstance(effect.key, FromConstant) else None
    return key if is_space and isinstance(key, str) else None


def _constants(recipe: Recipe) -> set[object] | None:
    if not isinstance(recipe, NewSequence) or recipe.cls is not set:
        return None
    return {item.value for item in recipe.items if isinstance(item, FromConstant)}


def _words(made: Effect | Recipe) -> str:
    """What an effect or a recipe does, in a few words."""
    kind = type(made).__name__
    if isinstance(made, CapturedCall):
        given = [str(part.source) for part in made.args if isinstance(part, FromSource)]
        name = getattr(made.function, "__qualname__", made.function)
        return f"{name}({', '.join([*given, '...'])})"
    for field in ("target", "cls", "function", "name"):
        found = getattr(made, field, None)
        if isinstance(found, FromSource):
            name = getattr(made, "name", None) or getattr(getattr(made, "key", None), "value", "")
            return f"{found.source}{f' ({name})' if name else ''} [{kind}]"
        if isinstance(found, type):
            return f"an instance of {found.__qualname__}"
        if callable(found) or isinstance(found, str):
            return f"{getattr(found, '__qualname__', found)} [{kind}]"
    return kind
