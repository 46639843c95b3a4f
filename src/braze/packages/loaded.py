"""A package in the process that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch

from braze.errors import PackageError, PackageInputError
from braze.frozen import frozen
from braze.ir.captured.compile_request import PartlyRun
from braze.packages.arguments import TensorCheck, bind, collect
from braze.packages.results import Build
from braze.packages.state import PackageState
from braze.shapes.binding import UnmetCheck
from braze.shapes.memory_overlap import first_meeting

# Where a method finds a tensor: ("leaf", number) in its arguments, ("tensor", number) in the state.
Place = tuple[str, int]


@final
@frozen
class MethodPlan:
    """A method of a package, ready to be called.

    inputs: of the graph, then numbers. unmet: gives the first condition on sizes that does not
    hold. sharing: a group an `Access`, of tensors that do not meet where one is written to.
    distinct: arguments of which no two are one tensor; same: pairs that are one. truths: results of
    the graph, what each must be, and the words for where it is not. updates: buffers that the call
    replaces, and by which result. further: programs for sizes that this one is not for; missing:
    such sizes without a program, and the reason.
    """

    name: str
    signature: inspect.Signature
    structure: Any
    checks: tuple[TensorCheck, ...]
    unmet: Callable[[Any], str | None]
    inputs: tuple[Place, ...]
    numbers: Callable[[Any], tuple[Any, ...]]
    sharing: tuple[tuple[Place, ...], ...]
    distinct: tuple[int, ...]
    same: tuple[tuple[int, int], ...]
    truths: tuple[tuple[int, bool, str], ...]
    updates: tuple[tuple[int, int], ...]
    run: Callable[[Sequence[Any]], Sequence[torch.Tensor]]
    build: Build
    further: tuple[MethodPlan, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()

    def leaves(self, tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The tensors of a call's arguments. Raises PackageInputError for a call that this program
        is not for. tensors: of the package."""
        try:
            given = bind(self.signature, args, kwargs)
        except TypeError as error:
            raise PackageInputError(f"{self.name}(): {error}") from error
        leaves: list[torch.Tensor] = []
        expected = self.structure["arguments"]
        if given.keys() != expected.keys():
            more, fewer = given.keys() - expected.keys(), expected.keys() - given.keys()
            raise PackageInputError(
                f"{self.name}() was packaged with the arguments {', '.join(expected) or '(none)'}"
                + "".join(f"; {name} is given, too" for name in sorted(more))
                + "".join(f"; {name} is not given" for name in sorted(fewer))
            )
        for name, structure in expected.items():
            collect(structure, given[name], name, leaves)
        for check in self.checks:
            check.check(leaves[check.leaf])
        unmet = self.unmet(leaves)
        if unmet is not None:
            raise PackageInputError(f"the program is not for these sizes: {unmet} does not hold.")
        self._check_identity(leaves, tensors)
        return leaves

    def _check_identity(
        self, leaves: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Whether arguments are one tensor, or share memory, as they did."""
        for one, other in self.same:
            if leaves[one] is not leaves[other]:
                raise PackageInputError("two arguments that were one tensor are two.")
        if len({id(leaves[number]) for number in self.distinct}) != len(self.distinct):
            raise PackageInputError("two arguments that were two tensors are one.")
        groups = [
            [leaves[n] if kind == "leaf" else tensors[n] for kind, n in group]
            for group in self.sharing
        ]
        if groups and first_meeting(groups) is not None:
            raise PackageInputError(
                "arguments share memory with each other or with the package's buffers "
                "otherwise than when it was made, and the program writes to some."
            )

    def made(self, inputs: list[Any]) -> Sequence[torch.Tensor]:
        """The results of the graph. Raises what an operator raises."""
        try:
            return self.run(inputs)
        except PartlyRun as fault:
            fault.raise_cause()
        except UnmetCheck as fault:
            raise PackageInputError(f"the program is not for these inputs: {fault}") from fault


@final
class Method:
    """One packaged call: it takes what the function took, and returns what that returned, without
    gradients.

    Tensors have the dtype, device, shape and strides of the example, but for sizes that were
    packaged as changing; all else is equal to the example's. Anything else raises
    `braze.exc.PackageInputError`, before anything is computed. Threads may call at once what
    writes to no buffer of the package.
    """

    def __init__(
        self, plan: MethodPlan, state: PackageState, *, refuses_gradients: bool = False
    ) -> None:
        """refuses_gradients: whether an argument that requires gradients is an error."""
        self._plan, self._state = plan, state
        self._refuses_gradients = refuses_gradients
        self.__name__ = plan.name
        self.__signature__ = plan.signature

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the program. Raises PackageInputError for arguments that it is not for, and
        PackageError while parameters wait for `Package.load_state_dict`."""
        state = self._state
        if state.missing:
            raise PackageError(
                "the package holds no weights, and has got none yet: give it "
                f"{', '.join(state.missing_names())} by load_state_dict."
            )
        plan, leaves = self._chosen(args, kwargs)
        tensors = state.tensors
        inputs = [leaves[n] if kind == "leaf" else tensors[n] for kind, n in plan.inputs]
        inputs += plan.numbers(leaves)
        with torch.no_grad():
            made = plan.made(inputs)
            for number, holds, words in plan.truths:
                if bool(made[number]) is not holds:
                    raise PackageInputError(f"the program raises for these inputs: {words}")
            result = plan.build(leaves, tensors, made)
        for place, number in plan.updates:
            tensors[place] = made[number]
        return result

    def check(self, /, *args: object, **kwargs: object) -> None:
        """Raise PackageInputError for arguments that the program is not for."""
        self._chosen(args, kwargs)

    def __repr__(self) -> str:
        return f"<packaged method {self.__name__}{self.__signature__}>"

    # --- private -----------------------------------------------------------------------------

    def _chosen(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[MethodPlan, list[torch.Tensor]]:
        """The program for a call, and the tensors of its arguments."""
        plan, leaves = self._fitting(args, kwargs)
        if self._refuses_gradients and any(leaf.requires_grad for leaf in leaves):
            raise PackageInputError(
                "an argument requires gradients, and the program is for inference: call it with "
                "detached tensors."
            )
        return plan, leaves

    def _fitting(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[MethodPlan, list[torch.Tensor]]:
        plan, tensors = self._plan, self._state.tensors
        try:
            return plan, plan.leaves(tensors, args, kwargs)
        except PackageInputError as error:
            for further in plan.further:
                with suppress(PackageInputError):
                    return further, further.leaves(tensors, args, kwargs)
            if not plan.missing:
                raise
            reasons = "".join([f"\n  {sizes}: {reason}" for sizes, reason in plan.missing])
            raise PackageInputError(
                f"{error}\nSizes that could not be packaged:{reasons}"
            ) from error


@final
class Package:
    """The methods of a package, and their parameters and buffers, which no other object has.

    `package(...)` calls the only method, or `forward`; `package.NAME(...)` and `package["NAME"]`
    another. Buffers that the program writes to keep what it wrote for the next call.
    """

    def __init__(
        self,
        path: str,
        plans: Sequence[MethodPlan],
        state: PackageState,
        *,
        refuses_gradients: bool = False,
    ) -> None:
        self._path, self._state = path, state
        self._methods = {
            plan.name: Method(plan, state, refuses_gradients=refuses_gradients) for plan in plans
        }

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self._methods)

    def __getitem__(self, name: str) -> Method:
        found = self._methods.get(name)
        if found is None:
            raise KeyError(f"the package has no method {name!r}: {', '.join(self._methods)}")
        return found

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._methods[name]

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """Call the only method, or the one named `forward`."""
        methods = self._methods
        method = methods.get("forward") if len(methods) != 1 else next(iter(methods.values()))
        if method is None:
            raise PackageError(f"call one of the package's methods: {', '.join(methods)}.")
        return method(*args, **kwargs)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the package's parameters, buffers and constants, by the names that the model's
        `state_dict()` has for them. Raises PackageError where the package has got no weights."""
        if self._state.missing:
            raise PackageError("the package has got no weights yet.")
        names, tensors = self._state.names, self._state.tensors
        return {name: tensors[number].clone() for name, number in names.items()}

    def load_state_dict(self, state_dict: Mapping[str, object], strict: bool = True) -> None:
        """Copy tensors into the package's, by name. strict: all parameters and buffers of the
        model must be there, and no others; constants of the program may be. Raises PackageError."""
        self._state.load(state_dict, strict)

    def replace_tensor(self, number: int, tensor: torch.Tensor) -> str | None:
        """Have the programs read another tensor in the place of one of the package's. Returns why
        it does not fit, or None."""
        return self._state.replace(number, tensor)

    def __repr__(self) -> str:
        return f"<braze package {self._path}: {', '.join(self._methods)}>"
