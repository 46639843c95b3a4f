"""What options accept, and what the environment's variables, read here and nowhere else, give
them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from braze.errors import InvalidOption, unknown_name, warn
from braze.frozen import frozen

PROCESS: Mapping[str, str] = os.environ

_NONE = type(None)
_RUN_FOLDER, _PYTHON_PATH = "BRAZE_RUN_FOLDER", "PYTHONPATH"


@final
@frozen
class Setting:
    """What an option accepts. `accepts` are the types; `choices` further limit a string, or
    each in a tuple; `environment` names the variable that gives its first value."""

    accepts: tuple[type, ...]
    doc: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    environment: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise InvalidOption, which says what the option of this name takes, for other values."""
        kinds = tuple(kind for kind in self.accepts)
        right = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
        if not right:
            expected = " or ".join("None" if k is _NONE else k.__name__ for k in kinds)
            raise InvalidOption(f"Option {name!r} takes {expected}, not {value!r}: {self.doc}.")
        if self.choices and value is not None:
            kind = "mode" if name == "mode" else f"value of option {name!r}:"
            for one in value if isinstance(value, tuple) else (value,):
                if one not in self.choices:
                    raise InvalidOption(unknown_name(kind, one, self.choices))
        if self.least is not None and value < self.least:
            raise InvalidOption(f"Option {name!r} is at least {self.least}, not {value}.")
        if self.most is not None and value > self.most:
            raise InvalidOption(f"Option {name!r} is at most {self.most}, not {value}.")


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _parse_bool(variable: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise InvalidOption(f"{variable} is 0 or 1, not {text!r}.")


def _parse_int(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOption(f"{variable} is a whole number, not {text!r}.") from None


def _parse_path(variable: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InvalidOption(f"{variable} is a path, not {text!r}: {error}") from None


_PARSERS: Mapping[type, Callable[[str, str], Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    str: lambda _, text: text,
    Path: lambda variable, text: _parse_path(variable, text),
    tuple: lambda _, text: tuple(text.split()),
}


def parse_environment(
    environment: Mapping[str, str], settings: Mapping[str, Setting]
) -> dict[str, object]:
    """Values of options that environment variables give. settings: by the options' names.

    An ill-formed variable counts as absent, and is warned of, as one that is misspelt: a program
    must not end for what its environment has.
    """
    values: dict[str, Any] = {}
    # As the XDG base directory specification has it: a relative path is no path.
    if os.path.isabs(home := environment.get("XDG_CACHE_HOME", "")):
        values["cache_dir"] = Path(home) / "braze"
    for name, setting in settings.items():
        if (text := environment.get(setting.environment)) is not None:
            if not text and setting.accepts == (Path,):
                continue  # an empty path would be the current folder
            try:
                value = _PARSERS[setting.accepts[0]](setting.environment, text)
                setting.check(name, value)
            except InvalidOption as error:
                warn_of_environment(setting.environment, text, error)
            else:
                values[name] = value
    for variable in environment:
        if variable.startswith("BRAZE_") and (meant := _meant(variable, settings)):
            message = f"{variable} is no variable of Braze, and is ignored: did you mean {meant}?"
            warn(message)
    return values


def _meant(variable: str, settings: Mapping[str, Setting]) -> str | None:
    """The variable that one which Braze does not read is almost spelt as."""
    known = {*(setting.environment for setting in settings.values()), *_WITHOUT_OPTIONS}
    found = difflib.get_close_matches(variable, known, 1, 0.85)
    return found[0] if found and variable not in known else None


_WITHOUT_OPTIONS = ("BRAZE_LOGS", "BRAZE_LOGS_OUT", "BRAZE_TRACE")


def warn_of_environment(variable: str, text: str, error: InvalidOption) -> None:
    """Say that a variable's value is not used, and which values are valid."""
    message = f"{variable}={text!r} is ignored: {error}"
    warn(message)


def warn_of_output(variable: str, path: object, error: OSError) -> None:
    """Say that what a variable, or its option, asks for cannot be written there."""
    reason = error.strerror or type(error).__name__
    message = f"{variable}={str(path)!r} cannot be written: {reason}. The program goes on without."
    warn(message)


def logs_from_environment(environment: Mapping[str, str] = PROCESS) -> str:
    """The text of BRAZE_LOGS, empty where it is not set."""
    return environment.get("BRAZE_LOGS", "")


def log_file_from_environment(environment: Mapping[str, str] = PROCESS) -> str:
    """The path of BRAZE_LOGS_OUT, empty where it is not set."""
    return environment.get("BRAZE_LOGS_OUT", "")


def trace_folder_from_environment(environment: Mapping[str, str] = PROCESS) -> str:
    """The path of BRAZE_TRACE, empty where it is not set."""
    return environment.get("BRAZE_TRACE", "")


def run_folder_from_environment(environment: Mapping[str, str] = PROCESS) -> str:
    """The folder of `python -m braze run` for its children, empty outside of it."""
    return environment.get(_RUN_FOLDER, "")


def for_children(folder: str) -> Callable[[], None]:
    """Have processes that are started find that folder first on their path; what ends it."""
    before = os.environ.get(_PYTHON_PATH)
    os.environ[_RUN_FOLDER] = folder
    os.environ[_PYTHON_PATH] = os.pathsep.join([folder, *([before] if before else [])])

    def restore() -> None:
        del os.environ[_RUN_FOLDER]
        if before is None:
            del os.environ[_PYTHON_PATH]
        else:
            os.environ[_PYTHON_PATH] = before

    return restore


def environment_of_compilers(temporary: str) -> dict[str, str]:
    """The environment that compilers run in. temporary: the folder for their own files."""
    return {**PROCESS, "TMPDIR": temporary}
