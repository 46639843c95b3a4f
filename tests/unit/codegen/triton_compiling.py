"""Functions compiled for sm_90 on a machine without one: `python -m` this, texts on stdin.

Reads a JSON list of [name, text, signature, constants, aligned, warps, checked] and writes, for
each, its shared memory, the widths of its loads and stores of global memory, what multiplies, how
many bytes at once come into shared memory while it computes, and how many numbers are converted one
by one.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any


def compile_one(row: list[Any]) -> dict[str, Any]:
    """What came of one function."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, text, signature, constants, aligned, warps, checked = row
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, name)
        names = function.arg_names
        places = [n for n, kind in enumerate(signature) if kind == "constexpr"]
        source = ASTSource(
            function,
            dict(zip(names, signature, strict=True)),
            {(n,): value for n, value in zip(places, constants, strict=True)},
            {(n,): [["tt.divisibility", 16]] for n in aligned},
        )
        options = {"num_warps": warps, "debug": checked}
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = compiled.asm["ptx"]
    accesses = re.findall(r"(ld|st)\.global[\w.:]*?((?:\.v\d)?\.b\d+)", ptx)
    widths = sorted({f"{kind}{width}" for kind, width in accesses})
    arithmetic = sorted(set(re.findall(r"(?:wgmma\.mma_async|mma\.sync|fma\.rn)[\w.]*", ptx)))
    copies = re.findall(r"cp\.async\.c[ag][\w.:]* \[[^]]*\], \[[^]]*\], (0x\w+)", ptx)
    found = {"name": name, "widths": widths, "arithmetic": arithmetic}
    slow = re.findall(r"cvt[\w.]*\.(?:f32\.s\d+|bf16\.f32)\b", ptx)
    found |= {"conversions": len(slow)}
    found |= {"shared": compiled.metadata.shared, "copies": sorted({int(x, 16) for x in copies})}
    return found


if __name__ == "__main__":
    json.dump([compile_one(row) for row in json.load(sys.stdin)], sys.stdout)
