"""Index expressions as Triton text."""

from __future__ import annotations

from braze.codegen.index_syntax import IndexSyntax

TRITON = IndexSyntax("{0}", "{1} * {0}", "//", "tl.minimum", "tl.maximum")

index_text = TRITON.text
operand_text = TRITON.operand
