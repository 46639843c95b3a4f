"""Tables of the documentation that are made from the source's own tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

import braze
from braze.options import CACHE_DIR, Options
from braze.trace import ARTEFACTS
from tests.architecture.tree import ROOT
from tests.docs.support import support_table

DOCS = ROOT / "docs"
_MARK = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.S)

# Heading of the API reference -> what stands below it, names of `braze`.
API: Mapping[str, tuple[str, ...]] = {
    "Compile": ("compile", "compile_in_place", "install", "original_module", "run", "reset"),
    "See what happened": (
        *(
            "explain",
            "bisect",
            "on_event",
            "status",
            "compile_times",
            "profile_recompiles",
            "export",
            "set_logs",
            "is_compiling",
            "is_exporting",
        ),
    ),
    "Control what is compiled": (
        *("disable", "graph_break", "error_on_graph_break", "set_stance", "allow_in_graph"),
        *("nonstrict_trace", "nested_compile_region"),
        *("disallow_in_graph", "assume_constant_result", "substitute_in_graph", "wrap_numpy"),
    ),
    "Run in another process": ("package", "load_package", "load_compiled_function"),
    "Changing sizes": ("mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_unbacked"),
    "Backends": ("register_backend", "list_backends", "aot_backend"),
    "Options": ("list_options", "list_mode_options"),
}
# Names of `braze` whose entry is another one: a value by its class, a module by its members.
SHOWN_BY: Mapping[str, str] = {
    "config": "braze.options.Config",
    "Options": "braze.options.Options",
    "exc": "braze.exc",
    "comptime": "braze.compile_time.Comptime",
}


def cell(text: str) -> str:
    """A text as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def options_table() -> str:
    """Options: name, default, meaning, variable of the environment."""
    rows = ["| option | default | meaning | variable |", "|---|---|---|---|"]
    for field in fields(Options):
        setting = field.metadata["setting"]
        default = "`~/.cache/braze`" if field.default == CACHE_DIR else f"`{field.default!r}`"
        variable = f"`{setting.environment}`" if setting.environment else ""
        choices = ", ".join(f"`{choice}`" for choice in setting.choices)
        meaning = setting.doc + (f" ({choices})" if choices else "")
        rows.append(f"| `{field.name}` | {default} | {cell(meaning)} | {variable} |")
    return "\n".join(rows)


def logs_table() -> str:
    """Logs: name, what it shows."""
    rows = [f"| `{name}` | {cell(text)} |" for name, text in ARTEFACTS.items()]
    return "\n".join(["| log | shows |", "|---|---|", *rows])


def api_list() -> str:
    """The API reference: a directive of mkdocstrings for each public name."""
    parts: list[str] = []
    for heading, names in API.items():
        parts += [f"## {heading}", *(f"::: braze.{name}" for name in names)]
    for name in ("config", "Options"):
        parts.append(f"::: {SHOWN_BY[name]}")
    parts += [
        "## What the functions return",
        *(f"::: {name}" for name in RETURNED),
        "## Exceptions",
        "Each is found in `braze.exc`. `BackendCompilerFailed` and `FailOnRecompileLimitHit` are "
        "`BackendFailed` and `RecompileLimitExceeded`, under the names that `torch.compile` has.",
    ]
    classes = {name: getattr(braze.exc, name) for name in braze.exc.__all__}
    parts += [f"::: {c.__module__}.{name}" for name, c in classes.items() if c.__name__ == name]
    return "\n\n".join(parts)


RETURNED = (
    "braze.report.explain.Explanation",
    "braze.report.status.Status",
    "braze.compile_records.CallableStatus",
    "braze.report.recompile_profile.RecompileProfile",
    "braze.report.recompile_profile.RecompiledFunction",
    "braze.report.recompile_profile.RecompileCause",
    "braze.compile_records.CompileEvent",
    "braze.interop.export.Exported",
    "braze.packages.loaded.Package",
    "braze.packages.loaded.Method",
    "braze.packaging.ahead.AotCompiledFunction",
    "braze.packages.saved_function.SavedFunction",
)


def decisions_table() -> str:
    """The index of decisions, by subject, newest first."""
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted((DOCS / "decisions").glob("*.md")):
        if path.name != "index.md":
            title, date, subject = heading_of(path)
            rows.setdefault(subject, []).append((date, title, path.name))
    parts: list[str] = []
    for subject in sorted(rows):
        parts += [f"## {subject[0].upper()}{subject[1:]}", "| date | decision |\n|---|---|"]
        lines = sorted(rows[subject], key=lambda row: row[1])
        lines.sort(key=lambda row: row[0], reverse=True)
        parts[-1] += "".join(f"\n| {date} | [{title}]({name}) |" for date, title, name in lines)
    return "\n\n".join(parts)


def heading_of(path: Path) -> tuple[str, str, str]:
    """Title, date and subject of a decision; raises AssertionError where a page lacks them."""
    found = re.match(r"# (.+)\n\n\*(\d{4}-\d\d-\d\d) · ([\w ]+)\*\n", path.read_text())
    assert found is not None, f"{path.name} begins with a title and `*date · subject*`"
    return found[1], found[2], found[3]


TABLES: Mapping[str, Callable[[], str]] = {
    "options": options_table,
    "logs": logs_table,
    "api": api_list,
    "decisions": decisions_table,
    "support": support_table,
}


def with_tables(page: str) -> str:
    """The page with the tables that its marks name as they are now."""
    return _MARK.sub(lambda m: f"<!-- table: {m[1]} -->\n\n{TABLES[m[1]]()}\n\n<!-- end -->", page)
