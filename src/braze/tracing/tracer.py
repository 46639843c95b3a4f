"""The tracer: a dispatch mode under which PyTorch runs the program on fake tensors.

Below autograd, autocast and functorch each ATen call becomes a functional node. In-place calls
become new values of the memory they write to (`Place`); `finish` turns what is left of them into
write-backs and aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from braze.compat.torch import dispatcher as dispatch
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import is_untracked_view
from braze.compat.torch.dispatcher import storage_identity
from braze.compat.torch.functorch import is_differentiated
from braze.compat.torch.registered_ops import end_pending, pending_writes
from braze.ir.graphs.graph import Argument, Constant, Value
from braze.ir.graphs.op_effects import untouched_arguments
from braze.ir.origin import Origin
from braze.ir.types import TensorType
from braze.shapes.facts import Facts
from braze.shapes.memory_overlap import Extent, extent_of, extents_meet
from braze.tracing.as_strided import strided_view
from braze.tracing.collectives import (
    record_collective,
    refuse_data,
    refuse_hidden,
    refuse_metadata,
)
from braze.tracing.constant_folding import known_data
from braze.tracing.errors import UnknownTensor, Untraceable
from braze.tracing.fake_tensor import Place, Step, TracedTensor, is_detached, new_fake, place_of
from braze.tracing.finalize import FinishedTrace, finish_trace, writes_of
from braze.tracing.graph_inputs import Layout, check_traceable, input_type, wrap_input
from braze.tracing.graph_recorder import GraphRecorder
from braze.tracing.kernel_checks import check_arguments
from braze.tracing.mutation_checks import (
    UNIFORM_WRITES,
    WITHOUT_DERIVATIVE,
    check_apart,
    check_order,
    check_resized,
    check_write,
    is_constant,
    is_view_outside,
    write_constant,
)
from braze.tracing.op_schema import OperatorKind, OpFacts, describe_op
from braze.tracing.scalar_overflow import check_numbers
from braze.tracing.shape_rules.argument_types import (
    place_type,
    place_types,
    scalar_name,
    with_plain_sizes,
)
from braze.tracing.shape_rules.infer import infer, infer_view
from braze.tracing.shape_rules.meta_fallback import explicit_device
from braze.tracing.special_ops import SPECIAL_VIEW_PIECES, special_call
from braze.tracing.symbolic.slice_bounds import BOUNDED, counted_from_start
from braze.tracing.symbolic.symbolic_float import NUMBERS, SymbolicFloat, with_tensor
from braze.tracing.symbolic.uniform_values import uniform_data
from braze.tracing.wrapper_fake import holds_wrapper

_RESTRIDED, _DIFFERENTIABLE = 1, 2
_is_grad_enabled = torch.is_grad_enabled


class Tracer(dispatch.TorchDispatchMode):
    """Records what is done to fake tensors while it is active (`with tracer:`).

    origin: where the operators that follow come from; set it as the program moves on.
    facts: of the symbols among the inputs' sizes; set it before an input has one.
    gives_numbers: the number that a tensor on the CPU holds is a symbolic float; otherwise
        asking for it raises DataDependent. gives_integers, gives_sizes: so are integers, and sizes
        of results that depend on data, symbols. open_facts: gives the facts they belong to.
    replayable: the graph will be replayed under autograd, so results whose gradients a replay
        could not give (custom autograd functions) are refused. A trace that holds its own
        backward turns this off.
    check_number: told of a condition on numbers that the graph computes where Python or an operator
        raises, or gives a complex number, unless it holds; what it is given records the condition.
    checks_unread: operators that raise do so where nobody reads what they give.
    acts: an operator with effects was recorded.
    before_effects: called before an operator with effects that nobody can take back.
    step_now: of the program that is traced; set it where gradients may end at leaves that the
        trace made. leaf_reads: the steps at which those were read.
    intercept: called with an operator and its arguments where one of these is a wrapper's fake.
    touched: the fake tensors that operators were called on, while somebody asks.
    is_transformed: the graph is for calls under transforms of torch.func: inputs may be theirs.

    Calls raise DataDependent, Untraceable or UnknownTensor, out of the torch call that caused it.
    """

    def __init__(self, *, replayable: bool = True) -> None:
        dispatch.TorchDispatchMode.__init__(self)
        self.recorder = GraphRecorder()
        self.facts: Facts | None = None
        self.replayable = replayable
        self.is_transformed = False
        self.inputs: list[tuple[TracedTensor, Any]] = []
        self.constants: list[Constant] = []
        self.used_offsets: dict[int, Origin] = {}
        self.check_number: Callable[[Callable[[], Value]], None] | None = None
        self.before_effects: Callable[[], None] | None = None
        self.step_now: Callable[[], int] | None = None
        self.intercept: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.leaf_reads: list[int] = []
        self.touched: dict[int, TracedTensor] | None = None
        self.has_numbers = self.checks_unread = self.has_lazy = self.has_shared = False
        self.computes_lazy, self.acts = True, False
        self.new_lazy: list[tuple[Place, Place]] = []
        self.gives_numbers = self.gives_integers = self.gives_sizes = False
        self.open_facts: Callable[[], Facts] | None = None
        self.integers: dict[Any, Any] = {}  # what calls on the same values gave
        self._by_identity: dict[int, TracedTensor] = {}
        self._real_by_fake: dict[int, torch.Tensor] = {}
        self._memory: dict[int, list[tuple[Place, Extent]]] = {}
        self._meeting: dict[Place, list[Place]] = {}
        self._handlers: dict[Any, tuple[Any, Any, OpFacts]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    # --- the interface for capture --------------------------------------------------------------

    @property
    def origin(self) -> Origin:
        """The place in the user's program that operators are attributed to."""
        return self.recorder.origin

    @origin.setter
    def origin(self, origin: Origin) -> None:
        self.recorder.origin = origin

    def add_input(self, tensor: torch.Tensor, *, layout: Layout | None = None) -> TracedTensor:
        """The fake tensor for a real tensor, a graph input; the same one for the same tensor.
        layout: its sizes and strides, where some are symbolic."""
        known = self._by_identity.get(id(tensor))
        if known is not None:
            return known
        check_traceable(tensor, self.is_transformed)
        kind = input_type(tensor, layout)
        if self.is_transformed and is_differentiated(tensor):
            kind = TensorType(kind.dtype, kind.shape, kind.stride, kind.device, True)
        return self._add_input(tensor, kind, int(tensor.storage_offset()))

    def add_input_of_type(self, type: TensorType) -> TracedTensor:
        """A fake tensor for a graph input of which only the type is known."""
        return self._add_input(None, type, 0)

    def add_shared_input(self, fake: TracedTensor, real: torch.Tensor) -> None:
        """Let a view of an input stand for a real tensor, of several that share its memory."""
        self.has_shared = True
        self.add_lazy_input(fake, real)

    def add_lazy_input(self, fake: TracedTensor, real: torch.Tensor) -> None:
        """Let a fake tensor that was computed of an input stand for a real tensor that shares its
        memory, lazily conjugated or negated."""
        self.new_lazy.clear()
        self._by_identity[id(real)] = fake
        self._real_by_fake[id(fake)] = real

    def inputs_that_meet(self, place: Place) -> list[torch.Tensor]:
        """The real tensor of an input, and those of inputs that have elements in common with it, or
        with one of them, in the order in which they became inputs."""
        found, pending = {place}, [place]
        for each in pending:
            new = [other for other in self._meeting.get(each, ()) if other not in found]
            found.update(new)
            pending += new
        return [self.inputs[n][1] for n in sorted(each.input_index for each in found)]

    def add_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor for captured data, which must never change."""
        known = self._by_identity.get(id(tensor))
        if known is not None:
            return known
        check_traceable(tensor)
        kind = input_type(tensor)
        value = self.recorder.new_value(kind)
        self.constants.append(Constant(value, tensor))
        place = Place(kind, value, int(tensor.storage_offset()))
        fake = new_fake(place)
        self._by_identity[id(tensor)] = fake
        return fake

    def is_fake(self, x: object) -> bool:
        """Whether x is a fake tensor tensor."""
        return type(x) is TracedTensor

    def value_of(self, fake: torch.Tensor) -> Value:
        """What the fake tensor (or symbolic float) holds now, after the writes so far."""
        if isinstance(fake, torch.SymFloat):
            return fake.node.value()
        return self.recorder.read(place_of(fake))

    def real_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The real tensor of an input's fake tensor."""
        return self._real_by_fake.get(id(fake))

    def owner_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The real tensor of the input whose memory a fake tensor names."""
        place = place_of(fake)
        index = (place.base or place).input_index
        return self.inputs[index][1] if index >= 0 else None

    def note_offset(self, place: Place) -> None:
        """The trace depends on where the tensor begins in its storage: if that is an input's
        memory, the input's number goes to `used_offsets`, with the place in the program."""
        base = place.base or place
        if base.input_index >= 0:
            self.used_offsets.setdefault(base.input_index, self.origin)

    def fake_for(self, value: Value) -> TracedTensor:
        """A fake tensor for a value that holds a number which the program computes with."""
        self.has_numbers = True
        assert isinstance(value.type, TensorType)
        return new_fake(Place(value.type, value))

    def literal_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The data of a fake tensor that still is a captured constant."""
        if type(fake) is not TracedTensor:
            return None
        value = self.value_of(fake)
        return next((c.tensor for c in self.constants if c.value is value), None)

    def known_data(self, fake: object) -> torch.Tensor | None:
        """The data of a small fake tensor that depends on nothing but constants, at any size."""
        if type(fake) is not TracedTensor:
            return None
        constants = {constant.value: constant.tensor for constant in self.constants}
        with dispatch.WithoutMode(self):
            value = self.recorder.read(fake.place)
            found = known_data(self.recorder, constants, value)
            if found is None and fake.dim() == 0:
                found = uniform_data(self, value)
            return found

    def finish(
        self,
        results: Sequence[torch.Tensor],
        keeps_sized: bool = False,
        wanted: Iterable[Value] = (),
    ) -> FinishedTrace:
        """The graph that computes `results` and `wanted`, with aliases, write-backs and no other
        nodes. keeps_sized: as in `finish_trace`."""
        for result in results:
            if type(result) is TracedTensor and result.requires_grad:
                place = result.place
                if place.base is not None and is_untracked_view(result) and not is_detached(place):
                    place = place.base  # the caller's view is made of it, without gradients
                with torch.enable_grad():  # the program may have ended without gradients
                    self._read_tracked(place)
        places = [fake.place.base or fake.place for fake, _ in self.inputs]
        for (fake, _), place in zip(self.inputs, places, strict=True):
            if fake.requires_grad and self.recorder.has_new_history(place):
                # Autograd saw one write and not the next: the new history with the newest data.
                with torch.enable_grad():
                    self._read_tracked(place)
        return finish_trace(
            self.recorder,
            places,
            [p.version and writes_of(x, p.version) for (x, _), p in zip(self.inputs, places)],
            self.constants,
            results,
            self.facts,
            keeps_sized,
            wanted,
            self.checks_unread,
        )

    # Not the base class's: it also notes in globals of the process that a mode is active, which
    # threads that compile at the same time leave wrong, and can be interrupted half-way.

    def __enter__(self) -> Tracer:
        dispatch.push_dispatch_mode(self)
        return self

    def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
        dispatch.pop_dispatch_mode(None)
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            dispatch.clear_autocast_cache()

    # --- dispatch -------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        op: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Any = None,
    ) -> object:
        known = self._handlers.get(op)
        if known is None:
            facts = describe_op(op)
            handler = None if facts.kind is OperatorKind.FUNCTIONAL else _HANDLERS[facts.kind]
            known = self._handlers[op] = (special_call(op), handler, facts)
        special, handler, facts = known
        kwargs = kwargs or {}
        if self.intercept is not None and holds_wrapper((args, kwargs)):
            with self:
                return self.intercept(op, args, kwargs)
        if self.touched is not None:
            _note_touched(self.touched, (args, kwargs))
        if self.facts is not None or self.has_numbers:
            args = with_plain_sizes(args)
            if kwargs:
                kwargs = dict(zip(kwargs, with_plain_sizes(tuple(kwargs.values()))))
            if op in BOUNDED and not kwargs:
                args = counted_from_start(op, args)
        if args and type(args[0]) in NUMBERS and TracedTensor not in map(type, args):
            args = with_tensor(self, op, args)
        if facts.numbers and (kwargs or facts.numbers[0] < len(args)):
            check_numbers(self, facts, args, kwargs)
        if facts.is_asked:
            check_arguments(self, facts, args, kwargs)
        if self.has_shared and facts.written:
            written = _tensors_in(_written_arguments(facts, args, kwargs))
            check_order(op, [*written], [*_tensors_in(args), *_tensors_in(kwargs.values())])
        if special is not None:
            result = special(self, op, args, kwargs)
            if result is not NotImplemented:
                return result
        if handler is None:
            return self.call(op, args, kwargs)
        return handler(self, facts, args, kwargs)

    def record(self, op: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Record an operator that is dispatched as its kind has it, whatever is special of it."""
        _, handler, facts = self._handlers[op]
        if handler is None:
            return self.call(op, args, kwargs)
        return handler(self, facts, args, kwargs)

    @contextmanager
    def writes_pending(self) -> Iterator[None]:
        """Around an operator after whose failure the program is not run again: what it wrote to
        inputs before is then made by the graph. Untraceable where gradients flow through that."""
        bases = {fake.place.base or fake.place: fake for fake, _ in self.inputs}
        written = {base: fake for base, fake in bases.items() if base.version}
        if not (written and self.checks_unread):
            yield
            return
        for base, fake in written.items():
            if base.tracked_write and fake.requires_grad:
                raise Untraceable("an operator with effects behind a write that has gradients")
        targets = tuple([self.recorder.input_values[base.input_index] for base in written])
        values = tuple([base.value for base in written])
        counts = tuple([max(1, writes_of(x, base.version)) for base, x in written.items()])
        self.recorder.emit_typed(pending_writes, (targets, values, counts), {}, None)
        yield
        self.recorder.emit_typed(end_pending, (targets, values), {}, None)

    def call(self, op: Any, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Record a functional call on fake tensors and return fake tensors for its results."""
        values: list[Any] = []
        described: list[Any] = []
        grad = _is_grad_enabled()
        flags = self._bind(args, values, described, grad)
        keywords, keyword_types = kwargs, kwargs
        if kwargs:
            keywords, keyword_types, more = self.bind_keywords(kwargs, grad)
            flags |= more
        made = infer(op, described, keyword_types)
        result = self.recorder.emit_typed(op, values, keywords, made)
        if flags & _RESTRIDED:
            made = infer(op, place_types(args), {n: place_type(a) for n, a in kwargs.items()})
        elif type(made) is TensorType:
            return new_fake(Place(made, result, 0, flags & _DIFFERENTIABLE != 0))
        return _wrap(result, made, flags & _DIFFERENTIABLE != 0)

    def bind(self, args: Sequence[object]) -> list[Any]:
        """Call arguments with values in place of fake tensors."""
        values: list[Any] = []
        self._bind(args, values, [], torch.is_grad_enabled())
        return values

    def bind_tracked(self, args: Sequence[object]) -> tuple[list[Any], bool]:
        """The same, and whether gradients flow through one of them."""
        values: list[Any] = []
        flags = self._bind(args, values, [], torch.is_grad_enabled())
        return values, flags & _DIFFERENTIABLE != 0

    def _bind(
        self, args: Sequence[Any], values: list[object], described: list[object], grad: bool
    ) -> int:
        """Append the values and types of call arguments. Returns flags: whether a value has other
        strides than its fake tensor, and whether gradients flow."""
        flags = 0
        for argument in args:
            cls = type(argument)
            if cls is not TracedTensor and isinstance(argument, torch.Tensor):
                argument = self.fake_of(argument)
                cls = TracedTensor
            if cls is TracedTensor:
                place = argument.place
                if grad and argument.requires_grad:
                    value = self._read_tracked(place)
                    flags |= _DIFFERENTIABLE
                elif place.base is None:
                    value = place.value
                else:
                    if place.given_at >= 0 and grad:
                        self._check_saved()
                    value = self.recorder.read(place)
                values.append(value)
                described.append(value.type)
                if value.type is not place.type:
                    flags |= _RESTRIDED
            elif cls is list or cls is tuple:
                items: list[Any] = []
                item_types: list[Any] = []
                flags |= self._bind(argument, items, item_types, grad)
                values.append(tuple(items))
                described.append(tuple(item_types))
            elif cls is SymbolicFloat:
                values.append(argument.value())
                described.append(argument.example())
            else:
                values.append(argument)
                described.append(argument)
        return flags

    def bind_keywords(
        self, kwargs: dict[str, object], grad: bool
    ) -> tuple[dict[str, object], dict[str, object], int]:
        """Keyword arguments as values, as types, and the flags of `_bind`."""
        values: list[Any] = []
        described: list[Any] = []
        flags = self._bind(tuple(kwargs.values()), values, described, grad)
        keywords = dict(zip(kwargs, values))
        types = dict(zip(kwargs, described))
        if keywords.get("device") is not None:
            keywords["device"] = types["device"] = explicit_device(keywords["device"])
        return keywords, types, flags

    def _read_tracked(self, place: Place) -> Value:
        """Read through which gradients flow."""
        if place.given_at >= 0:
            raise Untraceable("gradients of a tensor whose data was assigned to")
        while (
            place.step is not None
            and place.step.op is aten.detach.default
            and not (place.new_leaf or place.is_custom)
        ):
            assert place.parent is not None  # autograd saved a result for its backward
            place = place.parent
        base = place.base or place
        if self.replayable and not (place.tracks_gradient and base.tracks_gradient):
            self._note_leaf(place)
        if base.history is not None:
            return self.recorder.read_with_gradient(place)
        return self.recorder.read(place)

    def _check_saved(self) -> None:
        """Autograd might save a tensor whose data was assigned to, and asks for its version."""
        if self.leaf_reads or any(fake.requires_grad for fake, _ in self.inputs):
            raise Untraceable("a tensor whose data was assigned to, where gradients may flow")

    def _note_leaf(self, place: Place) -> None:
        """Gradients end here. At a leaf made in the trace they may, where that is allowed."""
        walk: Place | None = place
        while walk is not None and not walk.new_leaf:
            walk = walk.parent
        if walk is None or self.step_now is None:
            raise Untraceable(
                "a tensor got its gradients from outside the operators (a custom autograd "
                "function, or requires_grad_() on a new tensor)"
            )
        self.leaf_reads.append(self.step_now())

    def fake_of(self, tensor: torch.Tensor) -> TracedTensor:
        """The fake tensor of a tensor that reached an operator: itself, or a real input's."""
        if type(tensor) is TracedTensor:
            return tensor
        known = self._by_identity.get(id(tensor))
        if known is None or (
            not self.replayable and tensor.requires_grad and torch.is_grad_enabled()
        ):
            raise UnknownTensor(tensor, "operator")
        return known

    def _add_input(self, real: torch.Tensor | None, type: TensorType, offset: int) -> TracedTensor:
        value = self.recorder.new_value(type)
        self.recorder.input_values.append(value)
        place = Place(type, value, offset)
        place.input_index = len(self.inputs)
        place.tracks_gradient = True
        fake = wrap_input(place, real)
        self.inputs.append((fake, real))
        if real is not None:
            self._note_memory(place, real)
            self._by_identity[id(real)] = fake
            self._real_by_fake[id(fake)] = real
        return fake

    def _note_memory(self, place: Place, real: torch.Tensor) -> None:
        """Find inputs that overlap in memory: a write to one would change the other."""
        extent = extent_of(real)
        neighbours = self._memory.setdefault(storage_identity(real), [])
        for other, its_extent in neighbours:
            if extents_meet(extent, its_extent):
                self._meeting.setdefault(other, []).append(place)
                self._meeting.setdefault(place, []).append(other)
                if other.version:
                    self.recorder.refuse_shared_write(place)
                    raise Untraceable("an input whose memory was written to through another input")
                other.shares_memory = place.shares_memory = True
        neighbours.append((place, extent))

    # --- views ----------------------------------------------------------------------------------

    def view(
        self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> Any:
        """Record a view and return fake tensors that share their memory with the first argument."""
        viewed = args[0]
        if type(viewed) is not TracedTensor:
            viewed = self.fake_of(viewed)
        place = viewed.place
        if place.given_at >= 0:
            raise Untraceable("a view of a tensor whose data was assigned to")
        if op is aten.as_strided.default:
            return strided_view(self, viewed, *args[1:])
        rest = tuple([tuple(a) if type(a) is list else a for a in args[1:]])
        grad = _is_grad_enabled()
        if grad and viewed.requires_grad and op is not aten.detach.default:
            value = self._read_tracked(place)
        else:
            value = self.recorder.read(place)
        described = infer_view(op, place.type, place.offset, rest, kwargs)
        step = Step(op, rest, kwargs)
        if described and type(described[0]) is TensorType:
            made, offset = described
            if made is value.type and op is aten.view.default:
                result = value
            elif value.type is place.type:
                result = self.recorder.emit_typed(op, (value, *rest), kwargs, made)
            else:
                result = self.recorder.apply(step, value, made)
            return new_fake(place.view(made, result, offset, step, grad))
        if value.type is place.type:
            results = self.recorder.emit_typed(
                op, (value, *rest), kwargs, tuple(made for made, _ in described)
            )
        else:
            results = self.recorder.emit(op, (value, *rest), kwargs)
        piece = SPECIAL_VIEW_PIECES[op]
        return [
            new_fake(place.view(made, result, offset, piece(place.type, rest, kwargs, index), grad))
            for index, ((made, offset), result) in enumerate(zip(described, results))
        ]

    # --- writes ---------------------------------------------------------------------------------

    def write(
        self, target: Any, value: Value, differentiable: bool = False, is_uniform: bool = False
    ) -> None:
        """Give a fake tensor's memory new contents, cast and broadcast as an in-place call does.
        is_uniform: whether all elements get one number."""
        fake = self.fake_of(target)
        place = fake.place
        found = value.type
        assert isinstance(found, TensorType)
        wanted = place.type
        check_write(place, differentiable, is_uniform)
        if found is not wanted:
            if not torch.can_cast(found.dtype, wanted.dtype):
                raise RuntimeError(
                    f"result type {scalar_name(found.dtype)} can't be cast to the desired output "
                    f"type {scalar_name(wanted.dtype)}"
                )
            if found.shape != wanted.shape:
                raise RuntimeError(
                    f"output with shape {list(wanted.shape)} doesn't match the broadcast shape "
                    f"{list(found.shape)}"
                )
            value = self.recorder.convert(value, wanted)
        self.recorder.write(place, value)
        if differentiable:
            base = place.base or place
            base.tracks_gradient = True
            if place.base is not None or is_view_outside(self.owner_of(fake)):
                self.recorder.used_once.add(base.value)


def _note_touched(touched: dict[int, TracedTensor], argument: object) -> None:
    if type(argument) is TracedTensor:
        touched[id(argument)] = argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            _note_touched(touched, item)
    elif isinstance(argument, dict):
        _note_touched(touched, tuple(argument.values()))


def _wrap(result: Any, types: Any, differentiable: bool) -> Any:
    """Fake tensors for values, of the values' own types or of those given."""
    if type(result) is Value:
        made = result.type if types is None else types
        assert isinstance(made, TensorType)
        return new_fake(Place(made, result, 0, differentiable))
    if isinstance(result, tuple):
        if types is None:
            return tuple([_wrap(r, None, differentiable) for r in result])
        return tuple([_wrap(r, t, differentiable) for r, t in zip(result, types)])
    return result


# --- one handler a kind ---------------------------------------------------------------------------


def _view(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return tracer.view(facts.op, args, kwargs)


def _written_arguments(
    facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[object]:
    return [
        args[position] if position < len(args) else kwargs[facts.argument_names[position]]
        for position in facts.written
    ]


def _tensors_in(values: Iterable[object]) -> Iterator[TracedTensor]:
    """The fake tensors among arguments, and in lists of them."""
    for value in values:
        if type(value) is TracedTensor:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _write(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    assert facts.functional is not None
    schema = facts.op._schema
    written: Sequence[Any] = _written_arguments(facts, args, kwargs)
    targets = [*_tensors_in(written)]
    check_apart(targets, targets)
    out_names = {facts.argument_names[p] for p in facts.written if schema.arguments[p].is_out}
    grad = _is_grad_enabled()
    values: list[Any] = []
    described: list[Any] = []
    flags = tracer._bind(args, values, described, grad)
    for argument in schema.arguments[len(values) :]:
        if argument.name in out_names or argument.kwarg_only or argument.name in kwargs:
            break
        values.append(argument.default_value)  # bernoulli.p has no default, bernoulli_ has
        described.append(argument.default_value)
    keywords, types, more = tracer.bind_keywords(
        {n: a for n, a in kwargs.items() if n not in out_names}, grad
    )
    differentiable = bool((flags | more) & _DIFFERENTIABLE)
    made = infer(facts.functional, tuple(described), types)
    with torch.set_grad_enabled(grad and facts.functional not in WITHOUT_DERIVATIVE):
        result = tracer.recorder.emit_typed(facts.functional, values, keywords, made)
    results = result if type(result) is tuple else (result,)
    fresh = len(results) - len(written)
    if len(written) == 1 and isinstance(written[0], (list, tuple)):
        results, fresh, written = results, 0, written[0]  # one list of tensors is written
        results = results[0] if type(results[0]) is tuple else results
    for number, (target, value) in enumerate(zip(written, results[fresh:])):
        if isinstance(target, (list, tuple)):
            name = facts.argument_names[facts.written[number]]
            if name in untouched_arguments(facts.op, kwargs):
                continue
            for one, new in zip(target, value):
                tracer.write(one, new, differentiable)
        elif facts.op._schema.arguments[facts.written[0]].is_out:
            _write_out(tracer, target, value, differentiable)
        elif differentiable and is_constant(target, value, facts.functional):
            write_constant(tracer, facts.op, target, _wrap(value, None, False), args[1:])
        else:
            tracer.write(target, value, differentiable, facts.op in UNIFORM_WRITES)
    return _results_of_write(facts, written, results[:fresh], differentiable)


def _write_out(tracer: Tracer, target: Any, value: Value, differentiable: bool) -> None:
    """What `out=` names takes the result; `out=torch.empty(0)` its shape, too."""
    made = value.type
    assert isinstance(made, TensorType)
    if made.shape == target.place.type.shape:
        tracer.write(target, value, differentiable)
    elif target.numel():
        raise Untraceable("out= changes the sizes of a tensor with elements: eager warns of that")
    elif made.dtype is not target.place.type.dtype:
        tracer.write(target, value, differentiable)
    elif target.place.base is not None or target.place.input_index >= 0:
        raise Untraceable("out= changes the sizes of a view or of an input of the graph")
    else:
        target.become(Place(made, value, 0, differentiable))


def _results_of_write(
    facts: OpFacts, written: Sequence[object], fresh: Sequence[object], differentiable: bool
) -> object:
    made = iter(fresh)
    same = iter(written)
    results = [
        _wrap(next(made), None, differentiable) if result.alias_info is None else next(same)
        for result in facts.op._schema.returns
    ]
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def _opaque_write(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """An operator that writes, without a functional form: recorded by the convention of Node."""
    recorder = tracer.recorder
    grad = _is_grad_enabled()
    values: list[Any] = []
    flags = tracer._bind(args, values, [], grad)
    keywords, _, more = tracer.bind_keywords(kwargs, grad)
    differentiable = bool((flags | more) & _DIFFERENTIABLE)
    written: Sequence[Any] = _written_arguments(facts, args, kwargs)
    types = infer(facts.op, place_types(args), {n: place_type(a) for n, a in kwargs.items()})
    returned = () if types is None else types if isinstance(types, tuple) else (types,)
    aliased = [result.alias_info is not None for result in facts.op._schema.returns]
    fresh_types = tuple(t for t, alias in zip(returned, aliased) if not alias)
    flat = [t for w in written for t in (w if isinstance(w, (list, tuple)) else (w,))]
    flat = [t for t in flat if t is not None]
    check_apart(flat, [*_tensors_in(args), *_tensors_in(kwargs.values())])
    check_resized(facts.op, flat, [t for t, alias in zip(returned, aliased) if alias])
    results = recorder.emit_typed(
        facts.op, values, keywords, (*fresh_types, *(t.place.type for t in flat))
    )
    fresh = results[: len(fresh_types)]
    for target, value in zip(flat, results[len(fresh_types) :]):
        tracer.write(target, value, differentiable)
    return _results_of_write(facts, written, fresh, differentiable)


def _composite(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if tracer.facts is not None and dispatch.computes_with_sizes(facts.op):
        return tracer.call(facts.op, args, kwargs)
    if _is_grad_enabled() and _carries_gradients((*args, *kwargs.values())):
        # A composition whose device has a kernel of its own has a gradient of its own, too: the
        # parts, called behind autograd, would have none (test_composites_with_kernels.py).
        if facts.op is aten._foreach_zero_.default:  # whose functional form has no derivative
            for tensor in _tensors_in(args[:1]):
                _write(tracer, describe_op(aten.zero_.default), (tensor,), {})
            return None
        if facts.written:
            write = _opaque_write if facts.functional is None else _write
            return write(tracer, facts, args, kwargs)
        return tracer.call(facts.op, args, kwargs)
    with tracer:
        return dispatch.decompose(facts.op, args, kwargs)


def _carries_gradients(arguments: Sequence[object]) -> bool:
    """Whether a tensor among call arguments, or in a list of them, needs gradients."""
    return any(
        _carries_gradients(argument)
        if isinstance(argument, (list, tuple))
        else isinstance(argument, torch.Tensor) and argument.requires_grad
        for argument in arguments
    )


def _sizes(
    tracer: Tracer, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, object]
) -> list[object]:
    """C++ code that takes no symbols specialises them."""
    type = tracer.fake_of(args[0]).place.type
    return [int(n) for n in (type.stride if facts.op is aten.stride.default else type.shape)]


_HANDLERS: dict[OperatorKind, Callable[..., Any]] = {
    OperatorKind.VIEW: _view,
    OperatorKind.WRITE: _write,
    OperatorKind.OPAQUE_WRITE: _opaque_write,
    OperatorKind.METADATA: refuse_metadata,
    OperatorKind.DATA: refuse_data,
    OperatorKind.HIDDEN: refuse_hidden,
    OperatorKind.COLLECTIVE: record_collective,
    OperatorKind.COMPOSITE: _composite,
    OperatorKind.SIZES: _sizes,
}

__all__ = ["Argument", "Tracer"]
