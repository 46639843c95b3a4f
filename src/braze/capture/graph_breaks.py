"""The catalogue of graph breaks: why capture can stop, and what a user can do about each.

A code is a stable identifier: messages, reports and documents refer to it.
"""

from __future__ import annotations

from typing import final

from braze.frozen import frozen
from braze.ir.captured.frame import GraphBreak, Refused
from braze.ir.origin import Origin

FUNDAMENTAL = "This break is fundamental: no graph can hold it, so the program has to change"
MISSING = "This break is not fundamental: a later version of Braze may hold it in the graph"
ASKED_FOR = "The program asks for this break"


@final
@frozen
class BreakReason:
    """One entry.

    title: the kind of thing that stopped the graph, in a few words.
    template: what happened, with one place, `{detail}`.
    hint: one concrete fix.
    example: a program that meets it (`f` is compiled), or "" where none is known.
    prospect: whether it is FUNDAMENTAL, MISSING or ASKED_FOR.
    """

    title: str
    template: str
    hint: str
    example: str = ""
    prospect: str = MISSING


CATALOGUE: dict[str, BreakReason] = {
    "data-dependent-branch": BreakReason(
        "Data-dependent branching",
        "a branch depends on the values of a tensor: {detail}",
        "use torch.where or torch.cond, or branch on shapes or Python numbers",
        example=("def f(x):\n    return x * 2 if x.sum() > 0 else x"),
        prospect=FUNDAMENTAL,
    ),
    "data-dependent-value": BreakReason(
        "Value of a tensor",
        "the program asks for the values of a tensor: {detail}",
        "keep the value a tensor, or read it outside of the compiled function",
        example=("def f(x):\n    return x[: x.argmax().item()]"),
    ),
    "data-dependent-size": BreakReason(
        "Data-dependent number",
        "a number that is known only when the program runs is needed here: {detail}",
        "say what holds of it with torch._check(...), or choose with torch.cond or torch.where",
        example=("def f(x):\n    return x * 2 if random.randint(0, 1) else x"),
        prospect=FUNDAMENTAL,
    ),
    "input-output": BreakReason(
        "Input or output",
        "the program does input or output here: {detail}",
        "print or log outside of the compiled function",
        example=("def f(x):\n    print(x)\n    return x * 2"),
        prospect=FUNDAMENTAL,
    ),
    "explicit": BreakReason(
        "Call of graph_break()",
        "the program asks for a graph break: {detail}",
        "remove the call to graph_break() or disable()",
        example=("def f(x):\n    y = x * 2\n    braze.graph_break()\n    return y + 1"),
        prospect=ASKED_FOR,
    ),
    "disabled": BreakReason(
        "Call of a disabled function",
        "a function that disable() leaves out: {detail}",
        "remove disable(), or call it outside of the compiled function",
        example=(
            "@braze.disable\ndef report(x): ...\n\n\ndef f(x):\n    report(x)\n    return x * 2"
        ),
        prospect=ASKED_FOR,
    ),
    "disallowed": BreakReason(
        "Call of a disallowed function",
        "a function that disallow_in_graph() keeps out of graphs: {detail}",
        "remove disallow_in_graph()",
        example=(
            "@braze.disallow_in_graph\n"
            "def twice(x):\n"
            "    return x * 2\n"
            "\n\n"
            "def f(x):\n"
            "    return twice(x) + 1"
        ),
        prospect=ASKED_FOR,
    ),
    "unseen-callable": BreakReason(
        "Call of C code",
        "a callable that cannot be looked into: {detail}",
        "call it outside of the compiled function",
        example=("def f(x):\n    return x * time.time()"),
        prospect=FUNDAMENTAL,
    ),
    "unseen-python": BreakReason(
        "Python code called by C code",
        "a C function calls Python code where it cannot be followed: {detail}",
        "write the call as a plain Python loop",
        example=("def f(x):\n    return torch.func.linearize(torch.sin, x)[0]"),
    ),
    "unsupported-opcode": BreakReason(
        "Unsupported instruction",
        "a bytecode instruction that is not handled: {detail}",
        "rewrite the statement more plainly",
    ),
    "operator-without-fake": BreakReason(
        "Operator whose sizes are not known",
        "no rule says which sizes the results of an operator have before it runs: {detail}",
        "give it one with torch.library.register_fake; sizes that depend on data have none",
        example=(
            '@torch.library.custom_op("examples::doubled", mutates_args=())\n'
            "def doubled(x: torch.Tensor) -> torch.Tensor:\n"
            "    return x * 2\n"
            "\n\n"
            "def f(x):\n"
            "    return doubled(x) + 1"
        ),
    ),
    "triton-kernel": BreakReason(
        "Launch of a Triton kernel",
        "a Triton kernel is launched in a way that no graph holds: {detail}",
        "launch it with a tuple of integers, or a function that gives one, on plain tensors; or "
        "make an operator of it with torch.library.custom_op",
    ),
    "unsupported-tensor": BreakReason(
        "Unsupported tensor operation",
        "a tensor operation that cannot be traced: {detail}",
        "run it outside of the compiled function",
        example=("def f(x):\n    return x * x.data_ptr()"),
    ),
    "unsupported-attribute": BreakReason(
        "Unsupported attribute access",
        "an attribute access that cannot be followed: {detail}",
        "read or write the attribute outside of the compiled function",
        example=("class Config: ...\n\n\ndef f(x):\n    Config.last = x.shape\n    return x * 2"),
    ),
    "unsupported-container": BreakReason(
        "Unsupported container",
        "a container whose contents cannot be guarded: {detail}",
        "pass the entries as separate arguments",
        example=(
            "class Tag:\n"
            "    def __hash__(self):\n"
            "        return 1\n"
            "\n\n"
            "tags = {Tag(), Tag()}  # which is which, `__eq__` says\n"
            "\n\n"
            "def f(x):\n"
            "    return x * sum(1 for tag in tags)"
        ),
    ),
    "numpy": BreakReason(
        "Unsupported NumPy function",
        "NumPy does this itself: {detail}",
        "call what docs/numpy.md lists, or compute with tensors",
        example=("def f(x):\n    return np.unique(x.numpy())"),
    ),
    "opaque-object": BreakReason(
        "Opaque object",
        "a value that only C code can read, and no guard can compare: {detail}",
        "pass a Python number or a tensor: int(n), float(n), torch.from_numpy(a)",
        example=("scale = np.longdouble(2)\n\n\ndef f(x):\n    return x * scale"),
        prospect=FUNDAMENTAL,
    ),
    "unsupported-function": BreakReason(
        "Unsupported kind of function",
        "a kind of function that is not interpreted: {detail}",
        "call it outside of the compiled function",
        example=("async def work(): ...\n\n\ndef f(x):\n    work().close()\n    return x * 2"),
    ),
    "unbuildable-object": BreakReason(
        "Object that cannot be rebuilt",
        "an object made here cannot be rebuilt after the graph ran: {detail}",
        "consume the object before the frame ends or breaks",
        example=(
            "def rows(x):\n"
            "    yield x\n"
            "    yield x * 2\n"
            "\n\n"
            "def f(x):\n"
            "    it = rows(x)\n"
            "    next(it)\n"
            "    return it"
        ),
    ),
    "long-loop": BreakReason(
        "Long loop",
        "a loop is not unrolled, each of its turns is a graph: {detail}",
        "compile what a turn does instead of the loop, or raise the option unroll_limit",
        example=("def f(x):\n    for _ in range(50_001):\n        x = x * 0.5\n    return x"),
    ),
    "idle-work": BreakReason(
        "Long computation in Python",
        "a long computation in Python, or a loop that waits, runs natively: {detail}",
        "do it outside of the compiled function, or raise the option idle_limit",
        example=(
            "def f(x):\n"
            "    n = 0\n"
            "    for i in range(100_000):\n"
            "        n = (n + i) % 7\n"
            "    return x * n"
        ),
        prospect=FUNDAMENTAL,
    ),
    "concurrency": BreakReason(
        "Threads and processes",
        "something runs beside the program here, or the program waits for it: {detail}",
        "start threads, and wait for them, outside of the compiled function",
        example=(
            "def f(x):\n"
            "    thread = threading.Thread(target=x.add_, args=(1,))\n"
            "    thread.start()\n"
            "    thread.join()\n"
            "    return x * 2"
        ),
        prospect=FUNDAMENTAL,
    ),
    "recursion": BreakReason(
        "Deep recursion",
        "calls are nested too deeply: {detail}",
        "turn the recursion into a loop",
        example=(
            "def power(x, n):\n"
            "    return x if n == 0 else power(x, n - 1) * x\n"
            "\n\n"
            "def f(x):\n"
            "    return power(x, 500)"
        ),
    ),
    "module-change": BreakReason(
        "Change of a module",
        "the program changes what a module or its parameters are: {detail}",
        "convert, freeze and parametrize modules outside of the compiled function",
        example=(
            "model = torch.nn.Linear(3, 3)\n\n\ndef f(x):\n    return model.double()(x.double())"
        ),
    ),
    "global-state": BreakReason(
        "State of the whole process",
        "the program changes or reads what all of PyTorch depends on: {detail}",
        "do it before the compiled function is called",
        example=("def f(x):\n    torch.manual_seed(0)\n    return x + torch.rand(3)"),
    ),
    "communication": BreakReason(
        "Communication between processes",
        "the program communicates with other processes: {detail}",
        "communicate outside of the compiled function, or by the operators of "
        "torch.ops._c10d_functional",
        example=(
            "def f(x):\n"
            "    try:\n"
            "        torch.distributed.all_reduce(x)\n"
            "    except ValueError:  # there is no process group\n"
            "        pass\n"
            "    return x * 2"
        ),
    ),
    "autograd-function": BreakReason(
        "Unsupported autograd function",
        "an autograd function that a graph cannot hold: {detail}",
        "let its backward depend on what it saved, and change nothing but its `ctx`",
        example=(
            "class Counted(torch.autograd.Function):\n"
            "    backwards = 0\n\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n        return x * 2\n\n"
            "    @staticmethod\n"
            "    def backward(ctx, gradient):\n"
            "        Counted.backwards += 1\n        return gradient * 2\n\n\n"
            "weight = torch.ones(3, requires_grad=True)\n\n\n"
            "def f(x):\n    return Counted.apply(x * weight)"
        ),
    ),
    "condition": BreakReason(
        "Unsupported torch.cond",
        "torch.cond or while_loop cannot be in the graph here: {detail}",
        "let branches and bodies only compute results of the same shapes and dtypes",
        example=(
            "def f(x):\n    return torch.cond(x.sum() > 0, lambda: torch.rand(3), lambda: x * 2)"
        ),
    ),
    "transform": BreakReason(
        "Transform around compiled code",
        "a transform of torch.func, or forward mode, is around a call: {detail}",
        "apply the transform inside of the compiled function",
    ),
    "backward-hook": BreakReason(
        "Hook on a module's backward",
        "a hook on a module's backward: {detail}",
        "hook the gradients of a tensor that enters or leaves the compiled function",
        example=(
            "model = torch.nn.Linear(3, 3)\n"
            "model.register_full_backward_hook(print)\n"
            "\n\n"
            "def f(x):\n"
            "    return model(x)"
        ),
    ),
    "finalizer": BreakReason(
        "Finalizer",
        "the end of an object is noticed, and this gives up the last place that holds it: {detail}",
        "keep the object until the compiled function is over, or clean up by a call",
        example=(
            "class Handle:\n"
            "    def __del__(self): ...\n"
            "\n\n"
            "def f(x):\n"
            "    handle = Handle()\n"
            "    y = x * 2\n"
            "    del handle\n"
            "    return y + 1"
        ),
        prospect=FUNDAMENTAL,
    ),
    "schedule": BreakReason(
        "Learning rate asked for behind a step",
        "what {detail}.step() wrote is asked for, which is called behind the graph",
        "ask for it before that step, or outside of the compiled function",
        example=(
            "weight = torch.ones(3, requires_grad=True)\n"
            "weight.grad = torch.ones(3)\n"
            "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
            "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)\n"
            "\n\n"
            "def f(x):\n"
            "    optimizer.step()\n"
            "    schedule.step()\n"
            "    return x * 2, schedule.get_last_lr()"
        ),
    ),
    "optimizer": BreakReason(
        "Data-dependent optimizer",
        "an optimizer decides by the values of tensors what it does next: {detail}",
        "nothing is lost but what could be fused with its step; its closure has graphs of its own",
        example=(
            "weight = torch.ones(3, requires_grad=True)\n"
            "optimizer = torch.optim.LBFGS([weight])\n"
            "\n\n"
            "def f(x):\n"
            "    def closure():\n"
            "        optimizer.zero_grad()\n"
            "        loss = (weight - x).square().sum()\n"
            "        loss.backward()\n"
            "        return loss\n"
            "\n"
            "    return optimizer.step(closure)"
        ),
        prospect=FUNDAMENTAL,
    ),
    "gradient-hook": BreakReason(
        "Hook on a gradient",
        "a hook on the gradient of a tensor made here: {detail}",
        "call backward() in the compiled function, too, or register the hook outside of it",
        example=(
            "weight = torch.ones(3, requires_grad=True)\n"
            "\n\n"
            "def f(x):\n"
            "    y = x * weight\n"
            "    y.register_hook(print)\n"
            "    return y"
        ),
    ),
    "hook-registration": BreakReason(
        "Registration of a hook",
        "the program registers a hook of a module, which stays: {detail}",
        "register it before the compiled function is called, or remove it in there",
        example=(
            "model = torch.nn.Linear(3, 3)\n"
            "\n\n"
            "def f(x):\n"
            "    handle = model.register_forward_hook(lambda m, x, y: y * 2)\n"
            "    return model(x), handle"
        ),
    ),
    "data-write": BreakReason(
        "Write through x.data",
        "a write through x.data changes what autograd keeps: {detail}",
        "write before the tensor is first used, or after its backward",
        example=(
            "weight = torch.ones(3, requires_grad=True)\n"
            "\n\n"
            "def f(x):\n"
            "    y = x * weight\n"
            "    weight.data.mul_(2)\n"
            "    return y"
        ),
    ),
    "not-inlined": BreakReason(
        "Call that is not inlined",
        "the call is left to a graph of its own: {detail}",
        "remove the decorator that forbids inlining",
        example=("@braze.disable\nclass Timer: ...\n\n\ndef f(x):\n    Timer()\n    return x * 2"),
        prospect=ASKED_FOR,
    ),
}


def graph_break(code: str, detail: str, origin: Origin) -> GraphBreak:
    """The break of the catalogue, with its reason filled in."""
    entry = CATALOGUE[code]
    return GraphBreak(code, entry.template.format(detail=detail), entry.hint, origin)


def at_the_end_of_the_stack(origin: Origin) -> Refused:
    """A call that leaves no room on the stack to compile it: the next one may."""
    found = graph_break("recursion", origin.function, origin)
    return Refused("now", found.code, found.reason, found.hint, origin)
