"""Every row of a table that people add to has a test that exercises it."""

from __future__ import annotations

import dis
import functools
import importlib
import re
import types
from collections.abc import Iterator

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from braze.capture.frames.dispatch_table import HANDLERS
from braze.compat.python.bytecode import FOLDED
from braze.compat.python.bytecode_versions import KNOWN_VERSIONS, NEVER_INTERPRETED
from braze.compat.python.opcode_semantics import MEANINGS
from braze.compat.python.opcodes import OPCODES, Opcode, opcodes
from braze.ir.passes import Pass
from braze.lower.rules import RULES
from braze.rewrite.passes import PASSES
from braze.runtime.resume import single_step as instructions
from tests.architecture.tree import ROOT, layer_of, listed, module_names, python_files, source_files

# Rows stand next to their code: importing all of it fills the tables.
for _name in module_names():
    if layer_of(_name) in ("capture", "lower"):
        importlib.import_module(_name)

# What PyTorch's composite operators decompose into, beside the operators that carry its name.
SWEPT = frozenset(
    name.removeprefix("_").removesuffix("_")
    for op in op_db
    for name in (op.name.split(".")[-1], op.aten_name or "")
)

# Operators under another name -> the OpInfo whose samples call them.
REACHED_THROUGH = {
    "embedding_dense": "nn.functional.embedding",
    "_fused_rms_norm": "nn.functional.rms_norm",
    "_native_batch_norm_legit_functional": "nn.functional.batch_norm",
    "_prelu_kernel": "nn.functional.prelu",
    "_reshape_alias": "reshape",
    "_safe_softmax": "nn.functional.scaled_dot_product_attention",
    "_unsafe_view": "matmul",
    "concatenate": "cat",
    "log_sigmoid_forward": "nn.functional.logsigmoid",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
    "native_group_norm": "nn.functional.group_norm",
    "native_channel_shuffle": "nn.functional.channel_shuffle",
    "nll_loss_forward": "nn.functional.nll_loss",
    "nll_loss2d_forward": "nn.functional.nll_loss",
    **{f"reflection_pad{n}d": "nn.functional.pad" for n in (1, 2, 3)},
    **{f"replication_pad{n}d": "nn.functional.pad" for n in (1, 2, 3)},
    "upsample_bilinear2d": "nn.functional.interpolate",
    "upsample_linear1d": "nn.functional.interpolate",
    "upsample_trilinear3d": "nn.functional.interpolate",
    **{f"upsample_nearest{n}d": "nn.functional.interpolate" for n in (1, 2, 3)},
}

# What no test names yet. May only shrink.
RULES_WITHOUT_TEST = frozenset(
    "__and__ __lshift__ __or__ __rshift__ __xor__ _efficientzerotensor _log_softmax_backward_data "
    "_native_batch_norm_legit_no_training _unsafe_index alias alias_copy cudnn_batch_norm "
    "detach_copy lift_fresh lift_fresh_copy native_dropout_backward nll_loss2d_backward".split()
)
OPCODES_WITHOUT_TEST = frozenset(
    "ASYNC_GEN_WRAP BEFORE_ASYNC_WITH DELETE_GLOBAL END_ASYNC_FOR GET_AITER GET_ANEXT "
    "GET_AWAITABLE IMPORT_STAR LOAD_FROM_DICT_OR_GLOBALS PRINT_EXPR "
    "POP_JUMP_BACKWARD_IF_NONE".split()
)


@functools.cache
def words_of_tests() -> frozenset[str]:
    """The words in the source of all tests but the architecture's."""
    tests = [f for f in python_files() if f.name.startswith("tests/")]
    texts = (f.text for f in tests if "architecture" not in f.name)
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def is_exercised(operator: str) -> bool:
    """Whether an OpInfo calls an operator, or a test of ours names it."""
    forward = operator.removesuffix("_backward")
    if REACHED_THROUGH.get(forward) in {op.name for op in op_db}:
        return True
    plain = forward.removeprefix("_").removesuffix("_").removesuffix("_copy")
    names = {f"{prefix}{plain}{suffix}" for prefix in ("", "_") for suffix in ("", "_copy")}
    return not names.isdisjoint(words_of_tests()) or plain.removeprefix("special_") in SWEPT


def test_every_lowering_rule_is_exercised() -> None:
    operators = {name.split(".")[1] for name in RULES}
    missing = {operator for operator in operators if not is_exercised(operator)}
    assert missing <= RULES_WITHOUT_TEST, listed(sorted(missing - RULES_WITHOUT_TEST))


@functools.cache
def exercised_meanings() -> frozenset[str]:
    """Meanings of the instructions of capture's and runtime's tests, nested functions included."""

    def meanings_in(code: types.CodeType) -> Iterator[str]:
        for instruction in dis.get_instructions(code):
            yield OPCODES[instruction.opname].meaning_of(instruction.arg or 0)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from meanings_in(constant)

    found: set[str] = set()
    for folder in ("unit/capture", "unit/runtime", "differential", "regress"):
        for path in (ROOT / "tests" / folder).rglob("*.py"):
            found.update(meanings_in(compile(path.read_text(), str(path), "exec")))
    return frozenset(found)


def test_every_opcode_is_exercised() -> None:
    missing = set(HANDLERS) & meanings(OPCODES) - exercised_meanings()
    assert missing <= OPCODES_WITHOUT_TEST, listed(sorted(missing - OPCODES_WITHOUT_TEST))


def meanings(table: dict[str, Opcode]) -> set[str]:
    """What instructions of a version are called by the decoder."""
    found = {row.meaning for row in table.values()}
    return found.union(*[row.variants.values() for row in table.values()])


@pytest.mark.parametrize("version", KNOWN_VERSIONS, ids=str)
def test_every_opcode_has_a_handler(version: tuple[int, int]) -> None:
    needed = meanings(opcodes(version)) - NEVER_INTERPRETED - FOLDED
    assert needed <= set(HANDLERS), listed(sorted(needed - set(HANDLERS)))


def test_both_domains_carry_out_every_shared_meaning() -> None:
    assert set(MEANINGS) <= set(HANDLERS) & set(instructions.HANDLERS)
    known = set().union(*[meanings(opcodes(version)) for version in KNOWN_VERSIONS])
    unknown = set(MEANINGS) - known
    assert not unknown, f"meanings of no opcode: {unknown}"


@pytest.mark.parametrize("graph_pass", PASSES, ids=lambda graph_pass: graph_pass.name)
def test_every_pass_has_a_file_and_a_test(graph_pass: Pass) -> None:
    name, home = graph_pass.name, ROOT / "src" / "braze" / "rewrite"
    (path,) = home.rglob(f"{name}.py")
    module = ".".join(["braze.rewrite", *path.relative_to(home).with_suffix("").parts])
    assert callable(getattr(importlib.import_module(module), name))
    golden = (ROOT / "tests" / "golden" / "rewrite" / f"{name}.txt").exists()
    assert golden or name in words_of_tests(), f"no test names {name}"


def test_every_part_has_tests() -> None:
    parts = {f.layer for f in source_files() if f.path.parent != ROOT / "src" / "braze"}
    tests = [f for f in python_files() if f.name.startswith("tests/")]
    imported = {layer_of(name) for f in tests for name, _ in f.imports()}
    assert parts <= imported | {"compat"}, f"no test imports {sorted(parts - imported)}"
