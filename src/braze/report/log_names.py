"""Names that BRAZE_LOGS and `set_logs` take: logs, groups of them, and those of torch.compile.

graph_breaks    one log                +dynamo     a group, all of it
dynamo          what a user asks of    -bytecode   off, though a group has it
torch._inductor a module's group       help        the list
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from braze.trace import ARTEFACTS

ALL, HELP = "all", "help"

_CAPTURE = (
    "graph_breaks eager_calls recompiles recompiles_verbose recompile_profile guards bytecode "
    "graph_code graph_sizes trace_source trace_call trace_bytecode dynamic compile_times"
).split()
_AUTOGRAD = ["graph", "aot_joint_graphs", "aot_graphs"]
_KERNELS = "loops schedule fusion output_code kernel_code cache perf_hints compile_times".split()

# group -> (logs at level INFO, logs at level DEBUG, with a plus sign)
GROUPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        ALL: (tuple(ARTEFACTS), tuple(ARTEFACTS)),
        "dynamo": (
            ("graph_breaks", "eager_calls", "recompiles", "compile_times"),
            tuple(_CAPTURE),
        ),
        "aot": (("aot_graphs",), tuple(_AUTOGRAD)),
        "inductor": (("perf_hints", "compile_times"), tuple(_KERNELS)),
    }
)

# A name of torch.compile's -> the log that shows the same.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "aot_joint_graph": "aot_joint_graphs",
        "autograd": "aot",
        "autotuning": "perf_hints",
        "caching": "cache",
        "cudagraph_static_inputs": "perf_hints",
        "cudagraphs": "perf_hints",
        "functorch": "aot",
        "graph_code_verbose": "graph_code",
        "ir_post_fusion": "schedule",
        "ir_pre_fusion": "loops",
        "loop_ordering": "fusion",
        "loop_tiling": "fusion",
        "post_grad_graphs": "aot_graphs",
        "pre_grad_graphs": "graph",
        "sym_node": "dynamic",
        "trace_shape_events": "dynamic",
        "verbose_guards": "guards",
        "braze": ALL,
        "braze.autograd": "aot",
        "braze.capture": "dynamo",
        "braze.codegen": "output_code",
        "braze.lower": "loops",
        "braze.rewrite": "aot_graphs",
        "braze.schedule": "schedule",
    }
)

_THEIRS = "torch._"


def resolve_name(name: str) -> str | None:
    """The log or group of a name; of a module, that of the nearest one around it; None where there
    is none."""
    is_module = name.startswith((_THEIRS, "braze."))
    name = name.removeprefix(_THEIRS)
    while name:
        found = ALIASES.get(name, name)
        if found in ARTEFACTS or found in GROUPS:
            return found
        if (last := name.removeprefix("braze.")) in ARTEFACTS:
            return last
        name = name.rpartition(".")[0] if is_module else ""
    return None


def known_names() -> list[str]:
    """Every name that is taken."""
    return [*ARTEFACTS, *GROUPS, *ALIASES, HELP]


def help_text() -> str:
    """The list of names, with what each shows."""
    width = max(map(len, ARTEFACTS))
    lines = [f"  {name:{width}}  {text}" for name, text in ARTEFACTS.items()]
    groups = [f"  {name:{width}}  {', '.join(info)}" for name, (info, _) in GROUPS.items()]
    others = [f"  {name:{width}}  {found}" for name, found in sorted(ALIASES.items())]
    return "\n".join(
        [
            "BRAZE_LOGS=name,+name,-name: shown, shown with all details, not shown.",
            "BRAZE_LOGS_OUT=file: written there, too.",
            "Logs:",
            *lines,
            "Groups, without a plus sign:",
            *groups,
            "Names of torch.compile, and modules:",
            *others,
        ]
    )
