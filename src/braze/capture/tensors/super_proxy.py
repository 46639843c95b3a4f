"""`super()` of a tensor: Python's own asks for the class of the fake tensor."""

from __future__ import annotations

from typing import Any, final


@final
class SuperOfTensor:
    """What `super(start, owner)` is for a fake tensor of class `cls`, under the names that
    Python's has them."""

    def __init__(self, start: type, owner: Any, cls: type) -> None:
        self.__thisclass__ = start
        self.__self__ = owner
        self.__self_class__ = cls
