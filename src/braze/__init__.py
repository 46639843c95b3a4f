"""Braze compiles PyTorch programs: `braze.compile(model)` is the same model, faster."""

from braze import exc
from braze.api import (
    allow_in_graph,
    aot_backend,
    assume_constant_result,
    bisect,
    compile,
    compile_in_place,
    compile_times,
    disable,
    disallow_in_graph,
    error_on_graph_break,
    explain,
    export,
    graph_break,
    is_compiling,
    is_exporting,
    list_backends,
    list_mode_options,
    list_options,
    load_compiled_function,
    load_package,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
    nested_compile_region,
    nonstrict_trace,
    on_event,
    original_module,
    package,
    profile_recompiles,
    register_backend,
    reset,
    run,
    status,
    substitute_in_graph,
    wrap_numpy,
)
from braze.compile_time import comptime
from braze.environment import (
    log_file_from_environment,
    logs_from_environment,
    trace_folder_from_environment,
)
from braze.installation import follow_torch, install
from braze.options import Options, config
from braze.report.logs import set_logs, set_logs_of_environment
from braze.report.progress import show_progress
from braze.report.trace_folder import trace_to
from braze.report.versions import warn_of_versions
from braze.stances import set_stance
from braze.version import VERSION

__version__ = VERSION

__all__ = [
    "Options",
    "allow_in_graph",
    "aot_backend",
    "assume_constant_result",
    "bisect",
    "compile",
    "compile_in_place",
    "compile_times",
    "comptime",
    "config",
    "disable",
    "disallow_in_graph",
    "error_on_graph_break",
    "exc",
    "explain",
    "export",
    "graph_break",
    "install",
    "is_compiling",
    "is_exporting",
    "list_backends",
    "list_mode_options",
    "list_options",
    "load_compiled_function",
    "load_package",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nested_compile_region",
    "nonstrict_trace",
    "on_event",
    "original_module",
    "package",
    "profile_recompiles",
    "register_backend",
    "reset",
    "run",
    "set_logs",
    "set_stance",
    "status",
    "substitute_in_graph",
    "wrap_numpy",
]

set_logs_of_environment(logs_from_environment(), log_file_from_environment())
trace_to(trace_folder_from_environment())
show_progress()
warn_of_versions()
follow_torch()
