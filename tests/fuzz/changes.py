"""One reachable thing changed between two calls: what a guard has to notice."""

from __future__ import annotations

import random
import re

from tests.fuzz import builtin_subclasses
from tests.fuzz.scope import Draft

# Statements executed in the program's module. Those that name what a program does not have raise
# NameError or AttributeError in both runs, and cost a step.
_GLOBALS = (
    "g_int += 1",
    "g_int = 2.0",
    "g_int = -3",
    "g_int = True",
    "g_float = -0.0",
    "g_float = 1",
    "g_float = 3.25",
    "g_flag = not g_flag",
    "g_word = 'mean'",
    "g_word += 'y'",
    "g_list.append(T(3))",
    "g_list.pop()",
    "g_list.reverse()",
    "g_list[0] = g_list[1]",
    "g_list[1] = T(3, start=2)",
    "g_list = tuple(g_list)",
    "g_list[0] = g_v",
    "g_list = []",
    "g_ints.append(4)",
    "g_ints[0] = 5",
    "g_ints = (1, 2, 3)",
    "g_ints.clear()",
    "g_ints[1] = True",
    "g_table['c'] = T(2, 3, start=4)",
    "del g_table['a']",
    "g_table['a'] = g_table['b']",
    "g_table['a'] = g_t",
    "g_table = dict(reversed(list(g_table.items())))",
    "g_table['b'] = T(2, 3, start=9)",
    "g_table = collections.OrderedDict(g_table)",
    "g_counts['u'] += 1",
    "g_counts['w'] = 3",
    "del g_counts['u']",
    "g_counts = collections.Counter(g_counts)",
    "g_counts = dict(reversed(list(g_counts.items())))",
    "g_counts['u'] = 1.0",
    "g_set.add(5)",
    "g_set.discard(1)",
    "g_set = frozenset(g_set)",
    "math = __import__('cmath')",
    "LOG = ['new']",
    "len = lambda v: 4",
    "int = float",
    "torch_sin = torch.sin",
    "range = lambda *a: iter([0, 1])",
)
_OPS = (
    "g_ops[0] = torch.cos",
    "g_ops[0] = g_ops[1]",
    "g_ops[1] = lambda q: q + 3",
    "g_ops[1] = torch.neg",
    "g_ops[-1] = torch.relu",
    "g_ops.reverse()",
    "g_ops[:] = g_ops[1:] + g_ops[:1]",
    "g_ops = tuple(g_ops)",
    "shifted.__defaults__ = (2.0,)",
)
_TENSORS = (
    "{t} = {t}.clone()",
    "{t} = {t}.double()",
    "{t} = {t}.long()",
    "{t} = {t}.clone().requires_grad_()",
    "{t} = {t}.detach()",
    "{t} = {t}.t().contiguous().t()",
    "{t}.add_(1)",
    "{t} = nn.Parameter({t}.detach().float())",
    "{t} = torch.cat([{t}, {t}])[{t}.shape[0]:]",
    "{t} = {t}.as_strided({t}.shape, {t}.stride(), 0)",
    "{t} = {t} + 1",
    "{t}.requires_grad_(not {t}.requires_grad)",
    "{t} = torch.stack([{t}, {t}], -1)[..., 0]",
    "{t} = {t}[:1]",
    "{t} = torch.cat([{t}, {t}])",
    "{t}.grad = torch.ones_like({t})",
    "{t}.note = 3",
    "{t} = {t}.expand(*{t}.shape)",
    "{t} = {t}.to(torch.bfloat16)",
    "{t}.data = {t}.data.clone()",
    "{t}.data = {t}.data.double()",
    "{t}.resize_(1)",
    "{t} = torch.nn.Buffer({t}.detach())",
)
# The same numbers in the same strides elsewhere in a storage: batches cut from one tensor.
_PLACES = (
    "{t} = torch.cat([{t}, {t}])[{t}.shape[0]:]",
    "{t} = torch.stack([{t}, {t}])[1]",
    "{t} = torch.stack([{t}, {t} + 1])[1]",
)
_TENSOR_NAMES = (
    *("x", "y", "z", "g_t", "g_v", "g_p", "xp", "lst[0]", "g_list[0]", "g_table['a']", "box.t"),
    "g_i",
)
_BOX = (
    "{b}.k += 1",
    "{b}.k = 2.5",
    "{b}.s = 0.75",
    "{b}.name = 'v'",
    "{b}.t = {b}.t.double()",
    "{b}.t = T(2, 3)",
    "{b}.items.append(T(2, 3))",
    "{b}.items.pop()",
    "{b}.items = tuple({b}.items)",
    "{b}.extra = 5",
    "{b}.child = {b}",
    "Box0.level = 5",
    "Base.level = 7",
    "del Box0.level",
    "Base.pure = lambda self, q: q - 1",
    "{b}.step = lambda q: q * 3",
    "Box0.pure = lambda self, q: q - 4",
    "Box0.bump = lambda self, by=1: None",
    "Box0.scaled = staticmethod(lambda t, by=2: t - by)",
    "Box0.twice = 9",
    "Box0.__len__ = lambda self: 6",
    "Box0.__eq__ = lambda self, other: True",
    "{b}.pure = lambda q: q + 9",
    "Box0.__getattr__ = lambda self, name: 11",
    "{b}.t = {b}.items[0]",
    "{b}.items[0] = {b}.t + 1",
    "class Sub(Box0): level = 8\n{b}.__class__ = Sub",
    "Base.weigh.__defaults__ = (2,)",
    "Box0.scaled.__defaults__ = (7,)",
    "Box0.bump.__defaults__ = (3,)",
    "Box0.__getattribute__ = lambda self, name: object.__getattribute__(self, name)",
    "Base.weigh.__code__ = (lambda self, n: n * 2 + self.k).__code__",
    "{b}.__dict__ = dict({b}.__dict__, k=8)",
    "Box0.__setattr__ = lambda self, name, value: object.__setattr__(self, name, value)",
    "{b}.weigh = lambda n: n",
    "Box0.weigh = lambda self, n: -n",
    "{b}.items[1] = {b}.items[0]",
    "Box0.made = classmethod(lambda cls, t: cls(1, t + 1))",
    "Box0.__call__ = lambda self, q, k=1: q + 2",
    "Box0.__bool__ = lambda self: False",
    "Box0.__contains__ = lambda self, v: True",
)
_NET = (
    "g_net.eval()",
    "g_net.train()",
    "g_net.calls += 5",
    "g_net.buf = T(3, start=2)",
    "g_net.buf.add_(2)",
    "g_net.lin = nn.Linear(3, 3, bias=False)",
    "g_net.lin.weight.requires_grad_(False)",
    "g_net.w = nn.Parameter(T(3, start=5))",
    "g_net.double()",
    "g_net.lin.bias = None",
    "Net.forward = lambda self, q: q * 2",
    "g_net.forward = lambda q: q + 3",
    "g_net.body.eval()",
    "g_net.body = nn.Identity()",
    "g_net.buf = g_net.buf.double()",
    "g_net.w.data = g_net.w.data + 1",
    "g_net.lin.weight.data.mul_(2)",
    "g_net.lin.bias = nn.Parameter(T(3))",
    "g_net.lin.weight = g_net.lin.weight",
    "g_net.body.p = 0.0",
    "g_net.buf = None",
    "g_net.half().float()",
    "g_net.requires_grad_(False)",
    "g_net.lin.weight.grad = torch.ones(3, 3)",
    "g_net.body.eps = 0.5",
    "del g_net.buf",
    "g_net.body.extra = 1",
    "g_net.lin.weight.data = g_net.lin.weight.data.t()",
)
_HOOKS = (
    "g_net.register_forward_hook(lambda m, a, o: o + 1)",
    "g_net.lin.register_forward_hook(lambda m, a, o: o - 1)",
    "g_net.lin.register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
    "g_net.body.register_forward_pre_hook(lambda m, a: (a[0] * 2,))",
    "g_net.body.register_forward_hook(lambda m, a, o: LOG.append(1))",
    "g_net.register_forward_pre_hook(lambda m, a: LOG.append(2))",
)
_FUNCTIONS = (
    "{f}.__defaults__ = (4, *({f}.__defaults__ or (0,))[1:])",
    "{f} = lambda q, k=1, **more: q + 5",
    "{f}.__code__ = (lambda q, k=1, scale=0.5: q - 6).__code__",
    "if {f}.__kwdefaults__: {f}.__kwdefaults__['scale'] = 9.0",
    "{f} = functools.partial({f}, k=3)",
    "{f}.note = 1",
    "{f} = functools.wraps({f})({f})",
    "{f} = functools.partial({f})",
    "{f}.__kwdefaults__ = {{'scale': 4.0}}",
)
_AMBIENT = (
    "torch.set_grad_enabled(False)",
    "torch.set_grad_enabled(True)",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_default_dtype(torch.float32)",
    "torch.use_deterministic_algorithms(True)",
    "torch.set_autocast_enabled('cpu', True)",
    "torch.set_autocast_enabled('cpu', False)",
    "torch.manual_seed(5)",
    "random.seed(5)",
    "torch.set_autocast_dtype('cpu', torch.float16)",
    "torch.use_deterministic_algorithms(False)",
)
_CELLS = (
    "set_cell(7)",
    "set_cell(2.0)",
    "set_cell_t(T(2, 3, start=3))",
    "set_cell_t(T(2, 3).double())",
    "entry.__closure__[0].cell_contents = entry.__closure__[0].cell_contents",
    "set_cell_t(x)",
    "set_cell(True)",
    "del entry.__closure__[0].cell_contents",
    "entry.__closure__[-1].cell_contents = g_t",
)
_ENTRY = (
    "entry.__defaults__ = (None, 1, False, None, None, None)",
    "entry.__defaults__ = (x, 3, True, box, lst, d)",
)
_CONTAINERS = (
    "lst.append(T(2, 3))",
    "lst.pop()",
    "lst[0] = x",
    "lst.reverse()",
    "lst = tuple(lst)",
    "lst[1] = lst[0]",
    "lst[0] = lst[0].double()",
    "lst[0] = xp",
    "lst = collections.deque(lst)",
    "lst.clear()",
    "class L(list): pass\nlst = L(lst)",
    "d['u'] += 1",
    "d['w'] = 4",
    "del d['v']",
    "d = {}",
    "d = collections.defaultdict(int, d)",
    "d['u'] = 2.5",
    "d['u'] = True",
    "d = dict(reversed(list(d.items())))",
    "class D(dict): pass\nd = D(d)",
    "d['u'], d['v'] = d['v'], d['u']",
    "x = z",
    "x, z = z, x",
    "z = x.view(2, 3)",
    "z = x.t().reshape(2, 3)",
    "x = g_t",
    "y = x[0]",
    "y = z[1]",
    "lst[0] = lst[1][:]",
)


def change(
    draft: Draft, call: str, text: str, is_closure: bool, functions: list[str]
) -> tuple[list[str], str]:
    """One change as statements, and the call to make after it (mostly the same one).

    text: of `entry`. A change of something that neither it nor the call names is worth little, and
    one of an attribute that it does not read is worth less than one of another that it does.
    """
    rng = draft.rng
    if rng.random() < 0.2:
        return [], changed_call(rng, call)
    named = set(re.findall(r"\w+", text + call))
    statement = ""
    for attempt in range(12):
        statement = _statement(draft, text, is_closure, functions, named)
        (root,) = re.findall(r"[A-Za-z_]\w*", statement)[:1]
        if root not in named and root not in _ALWAYS:
            continue
        if attempt > 5 or _is_read(statement, text, named) or rng.random() < 0.3:
            break
    return [statement], call


def _is_read(statement: str, text: str, named: set[str]) -> bool:
    """Whether the program reads the attribute that a statement sets, if it sets one."""
    found = re.match(r"(\w+)\.(\w+)", statement)
    if found is None:
        return True
    return found[2] in named if found[1] in _ALWAYS else found[0] in text


_ALWAYS = builtin_subclasses.CLASSES | {
    *("torch", "random", "set_cell", "set_cell_t", "entry", "Base", "Box0", "Net")
}


def _statement(
    draft: Draft, text: str, is_closure: bool, functions: list[str], named: set[str]
) -> str:
    rng = draft.rng
    kinds: list[tuple[float, tuple[str, ...]]] = [
        (3, _GLOBALS),
        (3, _changed(rng.choice(_TENSOR_NAMES), _TENSORS)),
        (0.5, _changed(rng.choice(_TENSOR_NAMES), _PLACES)),
        (1, _AMBIENT),
        (3, _CONTAINERS),
        (0.3, _ENTRY),
    ]
    if draft.boxes:
        name = rng.choice([name for name in ("box", "g_box") if name in named] or ["box"])
        kinds.append((4, tuple(text.replace("{b}", name) for text in _BOX)))
    if functions:
        name = rng.choice(functions)
        kinds.append((2, tuple(text.format(f=name) for text in _FUNCTIONS)))
    if draft.has_net:
        kinds += [(3, _NET), (6 if "g_net(" in text else 0.5, _HOOKS)]
    if draft.has_subclasses:
        kinds.append((3, builtin_subclasses.CHANGES))
    if "g_ops" in named:
        kinds.append((3, _OPS))
    if is_closure:
        kinds.append((2, _CELLS))
    moved = [name for name in _TENSOR_NAMES if f"{name}.storage_offset()" in text]
    if moved:
        kinds.append((5, _changed(rng.choice(moved), _PLACES)))
    family = rng.choices([k for _, k in kinds], [w for w, _ in kinds])[0]
    return rng.choice(family)


def _changed(name: str, changes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.replace("{t}", name) for text in changes)


def changed_call(rng: random.Random, call: str) -> str:
    """The call with one argument of another kind."""
    swaps = (
        (r"n=\d[.\d]*", ("n=5", "n=1.5", "n=True", "n=-1", "n='u'", "n=x[0, 0]", "n=None")),
        (r"flag=\w+", ("flag=1", "flag=None", "flag=[]", "flag=x[0, 0] > 0")),
        (
            r"^run\(x,",
            (
                "run(z,",
                "run(x.double(),",
                "run(x[:1],",
                "run(x.t().contiguous().t(),",
                "run(xp,",
                "run(xp * 2,",
                "run(T(4, 3),",
                "run(x.clone().requires_grad_(),",
                "run(nn.Parameter(x.detach().float()),",
                "run(T(4, 3)[:2],",
                "run(T(4, 3)[2:],",
            ),
        ),
        (r"lst=\w+", ("lst=[x]", "lst=(x, z)", "lst=[x, x]", "lst=None", "lst=[xp, x]")),
        (r"d=\w+", ("d=None", "d={}", "d={'u': 1.5}", "d=dict(v=1, u=2)")),
        (r" y,", (" x[0],", " x[1],", " z[1],", " T(3).double(),", " T(1, 3),", " g_v,")),
    )
    pattern, choices = rng.choice(swaps)
    return re.sub(pattern, lambda _: rng.choice(choices), call, count=1)
