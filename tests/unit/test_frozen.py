"""Classes of frozen data behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, final

import pytest

from braze.frozen import frozen


@final
@frozen
class Point:
    x: int
    y: Any = dataclasses.field(default=2, repr=False)
    z: Any = ()


@final
@frozen(eq=False)
class Named:
    name: str


@final
@frozen
class Shown:
    x: int

    def __repr__(self) -> str:
        return f"<{self.x}>"


@dataclasses.dataclass(frozen=True, slots=True)
class Standard:
    x: int
    y: Any = dataclasses.field(default=2, repr=False)
    z: Any = ()


def test_no_field_is_set_or_deleted() -> None:
    for name in ("x", "other"):
        with pytest.raises(
            dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"
        ):
            setattr(Point(1), name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x
    assert not hasattr(Point(1), "__dict__")


def test_equality_is_by_fields_or_by_identity() -> None:
    assert Point(1) == Point(1) != Point(2) and hash(Point(1)) == hash(Point(1))
    assert Point(1) != Standard(1)  # type: ignore[comparison-overlap]
    one = Named("a")
    assert one == one != Named("a") and len({one, Named("a")}) == 2


def test_the_text_is_the_standard_librarys() -> None:
    assert repr(Point(1, z=(None, "a"))) == "Point(x=1, z=(None, 'a'))"
    assert repr(Point(1)) == repr(Standard(1)).replace("Standard", "Point")
    assert repr(Shown(1)) == "<1>"
    knot: list[Any] = []
    knot.append(Point(1, z=knot))
    assert repr(knot) == "[Point(x=1, z=[...])]"
    assert repr(knot[0]) == "Point(x=1, z=[...])"


def test_what_is_made_of_instances() -> None:
    point = Point(1, z=[3])
    assert dataclasses.replace(point, x=2) == Point(2, z=[3])
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "z": [3]}
    assert Point.__match_args__ == ("x", "y", "z")
