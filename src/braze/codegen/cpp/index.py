"""Index expressions as C++ text, in 64-bit integers."""

from __future__ import annotations

from braze.codegen.index_syntax import IndexSyntax

CPP = IndexSyntax("{0}L", "{0}L * {1}", "/", "bz_min", "bz_max")

index_text = CPP.text
operand_text = CPP.operand
