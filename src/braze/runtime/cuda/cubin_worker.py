"""Builds Triton functions, as a process of its own: run as a script, never imported to be used.

    -> {"jobs": [{"name": ..., "text": ..., "target": ..., ...}], "workers": 16}
    <- {"job": 3, "error": ""}      one line a job, as they end
    <- {"done": true}

Triton's compiler holds the interpreter's lock for most of its time, so each job is a child forked
from this process, which has Triton imported and warm; the process that asks never imports it.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import tempfile
import traceback
from typing import Any

WARP = 32
_REPLY_LENGTH = 3000  # below PIPE_BUF: replies of several children do not mix


def build(job: dict[str, Any], triton: Any, source: Any, target: Any) -> None:
    """Compile one function and write its cubin, behind a line of JSON, to the file asked for."""
    function = _defined(job["name"], job["text"])
    signature = job["signature"]
    fixed = [place for place, kind in enumerate(signature) if kind == "constexpr"]
    made = triton.compile(
        source(
            fn=function,
            signature=dict(zip(function.arg_names, signature, strict=True)),
            constexprs={(p,): value for p, value in zip(fixed, job["constants"], strict=True)},
            attrs={(place,): [["tt.divisibility", 16]] for place in job["aligned"]},
        ),
        target=target("cuda", job["arch"], WARP),
        options={
            "num_warps": job["warps"],
            "num_stages": job["stages"],
            "debug": job["checked"],
            "enable_fp_fusion": job["contract"],
            "enable_reflect_ftz": False,
        },
    )
    facts = made.metadata
    head = {
        "name": facts.name,
        "threads": facts.num_warps * WARP,
        "shared": facts.shared,
        "scratch": facts.global_scratch_size,
        "parameters": _parameters(made.asm["ptx"]),
    }
    half = f"{job['target']}.{os.getpid()}"
    with open(half, "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + made.asm["cubin"])
    os.replace(half, job["target"])


def forgo_key(triton: Any) -> None:
    """Spare Triton the key of its own cache, for which it hashes its libraries, half a gigabyte, at
    the first compile. Nothing is found by it here: that cache lives as long as this process, and
    the keys of Braze's have Triton's version."""
    cache = triton.runtime.cache
    if callable(getattr(cache, "triton_key", None)):
        cache.triton_key = lambda: "in this process"


def serve(triton: Any, source: object, target: object) -> None:
    """Answer batches until the other side closes."""
    with tempfile.TemporaryDirectory(prefix="braze-triton-") as scratch:
        triton.knobs.cache.dir = scratch
        triton.knobs.runtime.interpret = False
        warm = dict(_WARM_UP, target=os.path.join(scratch, "warm"))
        build(warm, triton, source, target)
        for line in sys.stdin:
            batch = json.loads(line)
            _run(batch["jobs"], batch["workers"], lambda job: build(job, triton, source, target))
            _reply({"done": True})


# --- private ---------------------------------------------------------------------------------

_WARM_UP: dict[str, Any] = {
    "name": "warm",
    "text": "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef warm(x):\n"
    "    tl.store(x, tl.exp(tl.load(x)))\n",
    "signature": ["*fp32"],
    "constants": [],
    "aligned": [0],
    "warps": 1,
    "stages": 1,
    "checked": False,
    "contract": True,
    "arch": 80,
}


def _defined(name: str, text: str) -> Any:
    """The Triton function of that text; Triton reads its source back through linecache."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text, file, "exec"), names)
    return names[name]


def _parameters(ptx: str) -> int:
    """How many parameters the entry has: those of the function, and Triton's own behind them."""
    head = ptx.split(".entry", 1)[1].split(")", 1)[0]
    return head.count(".param")


def _run(jobs: list[dict[str, object]], workers: int, work: object) -> None:
    """Each job in a child, as many at once as there are workers."""
    running: dict[int, int] = {}
    for number, job in enumerate(jobs):
        if len(running) >= workers:
            _wait(running)
        child = os.fork()
        if not child:
            _answer(number, job, work)
        running[child] = number
    while running:
        _wait(running)


def _wait(running: dict[int, int]) -> None:
    child, status = os.wait()
    number = running.pop(child, None)
    if number is not None and status:
        _reply({"job": number, "error": f"the compiler's process ended with status {status}"})


def _answer(number: int, job: dict[str, Any], work: Any) -> None:
    """In a child: do the job, say how it went, end."""
    error = ""
    try:
        work(job)
    except BaseException:
        error = traceback.format_exc()[-_REPLY_LENGTH:].encode("ascii", "replace").decode()
    try:
        _reply({"job": number, "error": error})
    finally:
        os._exit(0)


def _reply(answer: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    forgo_key(triton)
    serve(triton, ASTSource, GPUTarget)
