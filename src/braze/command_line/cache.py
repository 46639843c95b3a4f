"""`python -m braze cache`: what is in the cache of kernels, whether it is whole, and its end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from braze.cache.inventory import clear, damage_of, entries_of
from braze.cache.sealed import KINDS
from braze.cache.trust import NotTrusted, open_trusted
from braze.options import Options, config

_Action: TypeAlias = Callable[[Path, Options], int]


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        default="show",
        choices=_ACTIONS,
        help="show: where it is and what is in it; verify: check every entry, exit with 1 if one "
        "is damaged; clear: remove every entry",
    )
    parser.add_argument("--dir", type=Path, help="its folder, if not that of BRAZE_CACHE_DIR")


def run_cache(given: argparse.Namespace) -> int:
    """Run the command; the status to exit with."""
    options: Options = config.snapshot()
    return _ACTIONS[given.action]((given.dir or options.cache_dir).absolute(), options)


def trust_of(folder: Path) -> tuple[bool, str]:
    """Whether the cache is used, and why not."""
    for place in (folder, *[folder / kind for kind in KINDS]):
        try:
            opened = open_trusted(str(place), create=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            return False, f"not used: {place}: {error.strerror or error}"
        if isinstance(opened, NotTrusted):
            return False, f"not used: {opened.reason}. {opened.remedy}"
    return True, "trusted: nobody else can write there"


# --- private ---------------------------------------------------------------------------------


def _show(folder: Path, options: Options) -> int:
    is_trusted, why = trust_of(folder)
    entries = entries_of(folder)
    total = sum(entry.size for entry in entries)
    print(f"path     {folder}")
    print(f"trust    {why}")
    print(f"in use   {'yes' if options.cache and is_trusted else 'no'}")
    print(f"size     {total / 2**20:.1f} MiB of {options.cache_size}")
    print(f"entries  {len(entries)}")
    for kind in KINDS:
        of_kind = [entry.size for entry in entries if entry.kind == kind]
        print(f"  {kind:10s} {len(of_kind):6d}  {sum(of_kind) / 2**20:8.1f} MiB")
    return 0


def _verify(folder: Path, options: Options) -> int:
    is_trusted, why = trust_of(folder)
    if not is_trusted:
        print(why)
        return 1
    entries = entries_of(folder)
    wrong = [(entry, why) for entry in entries if (why := damage_of(folder, entry))]
    for entry, why in wrong:
        print(f"{folder / entry.kind / entry.name}: {why}")
    print(f"{len(entries) - len(wrong)} of {len(entries)} entries are whole")
    return int(bool(wrong))


def _clear(folder: Path, options: Options) -> int:
    is_trusted, why = trust_of(folder)
    if not is_trusted:
        print(why)
        return 1
    count, size = clear(folder)
    print(f"{count} entries removed, {size / 2**20:.1f} MiB")
    return 0


_ACTIONS: Mapping[str, _Action] = {"show": _show, "verify": _verify, "clear": _clear}
