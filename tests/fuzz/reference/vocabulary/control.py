"""Iterators, generators, coroutines, exceptions and closures: statements of the language."""

TEXT = """
== generator
def numbers§(count):
    try:
        for index in range(count):
            got = yield index + offset§
            LOG.append(got)
    finally:
        LOG.append("closed")
    return 9
offset§ = $I
running§ = numbers§(50)
--
k§ = «next(running§)|running§.send($N) if running§.gi_frame and running§.gi_frame.f_lasti > 9 else 0|sum(numbers§(3))|max(numbers§(n), default=0) if n < 9 else 0|next(running§, 0)|sum(v for v in numbers§(2))»
t§ = $T + k§
«pass|inner§ = numbers§(3); next(inner§); inner§.close()|first§, *rest§ = numbers§(3)»
o§ = running§.gi_running
--
offset§ = $I
running§ = numbers§(9)
next(running§)
running§.close()
== generator of tensors
def pieces§(v):
    for row in v:
        yield row * 2
    yield v.sum(0)
def both§(v):
    result = yield from pieces§(v)
    LOG.append(result)
--
t§ = $T + «sum(pieces§($T))|torch.stack(list(both§($T))).sum()|next(iter(both§($T)), 1)|sum(row for row in pieces§($T) if row.numel())»
o§ = len(list(pieces§($T)))
== throw and close
def careful§():
    while True:
        try:
            yield 1
        except ValueError as error:
            LOG.append(str(error))
            yield 2
        except GeneratorExit:
            LOG.append("exit")
            «return|raise»
--
g§ = careful§()
k§ = next(g§)
k§a = g§.throw(ValueError("v"))
«g§.close()|del g§|next(g§)|pass»
t§ = $T * k§a
== coroutine
async def wait§(v):
    LOG.append("in")
    return v * scale§
async def twice§(v):
    return await wait§(v) + await wait§(v)
scale§ = $I
def drive§(coroutine):
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return None
--
t§ = drive§(«wait§|twice§»($T))
--
scale§ = $I
wait§ = twice§
== iterator class
class Steps§:
    def __init__(self, limit):
        self.limit = limit
        self.at = 0
    def __iter__(self):
        «self.at = 0|LOG.append(self.at)»
        return self
    def __next__(self):
        if self.at >= self.limit:
            raise StopIteration
        self.at += 1
        return self.at
steps§ = Steps§(3)
--
t§ = $T
for v§ in steps§:
    t§ = t§ + v§
    «if v§ == 2: break|pass|if v§ == 1: continue»
o§ = [steps§.at, list(itertools.islice(steps§, 2))]
--
steps§.limit = 5
steps§.at = 0
Steps§.__next__ = lambda self: (_ for _ in ()).throw(StopIteration)
steps§ = [1, 2]
Steps§.__iter__ = lambda self: iter([4])
== old sequence protocol
class Old§:
    size = 3
    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError
        return index + 1
old§ = Old§()
--
t§ = $T * sum(v for v in old§)
o§ = «list(old§)|2 in old§|[*old§]|list(zip(old§, old§))|tuple(iter(old§))|dict(enumerate(old§))»
--
Old§.size = $I
old§.size = $I
Old§.__getitem__ = lambda self, index: [7, 8][index]
== iterators kept
counter§ = itertools.count($I)
cycle§ = itertools.cycle("ab")
walk§ = iter([1, 2, 3, 4, 5, 6, 7, 8])
--
k§ = next(«counter§|walk§|iter([n])»«|, 0»)
o§ = «next(cycle§)|next(walk§, None)|[v for v in itertools.islice(walk§, 2)]|operator.length_hint(walk§)»
t§ = $T + k§
--
next(counter§)
next(cycle§)
walk§ = iter([5])
counter§ = itertools.count(9)
list(walk§)
== itertools
source§ = [3, 1, 2]
--
o§ = «list(itertools.accumulate(source§, operator.mul))|list(itertools.chain.from_iterable([source§, [n]]))|[(k, len(list(g))) for k, g in itertools.groupby(source§)]|list(itertools.product(source§, repeat=2))[:3]|list(itertools.combinations(source§, 2))|list(itertools.permutations(source§))[1]|list(itertools.zip_longest(source§, [n], fillvalue=7))|list(itertools.pairwise(source§))|list(itertools.takewhile(lambda v: v > 1, source§))|list(itertools.dropwhile(lambda v: v > 1, source§))|list(itertools.filterfalse(lambda v: v > 1, source§))|list(itertools.starmap(pow, [(2, n)]))|list(itertools.compress(source§, [1, 0, n]))|[list(v) for v in itertools.tee(source§)]|list(itertools.repeat(n, 2))|sorted(source§, reverse=True)|list(reversed(source§))|list(zip(source§, source§[1:], strict=False))|list(map(max, source§, [2, 2, 2]))|list(filter(None, [0, n]))»
t§ = $T + sum(source§)
«pass|source§.sort()|source§.reverse()|source§.append($N)|source§.insert(0, $N)|source§[1:] = [n]»
--
source§.append($I)
source§[0] = $I
source§.clear()
source§ = (1, 2)
== mutated while iterated
grow§ = {"a": 1, "b": 2}
rows§ = [1, 2, 3]
--
try:
    for key§ in «grow§|list(grow§)|grow§.items()|grow§.keys()»:
        «grow§[str(key§) + "x"] = 1|pass|grow§.pop("a", None)|grow§["a"] = n»
    o§ = len(grow§)
except RuntimeError as error:
    o§ = str(error)
t§ = $T
for row§ in rows§:
    t§ = t§ + row§
    «if len(rows§) < 5: rows§.append(1)|rows§.remove(row§)|pass»
--
rows§.append(4)
grow§["c"] = 1
rows§.clear()
== comprehension
table§ = {"a": 1, "b": $I}
--
o§ = «[v * n for v in table§.values() if v]|{k: v for k, v in table§.items() if v > 1}|sorted({v % 2 for v in table§.values()})|[(i, k) for i, k in enumerate(table§)]|[y := n, y ** 2]|[[a + b for a in (1, n)] for b in table§.values()]|any(v > 2 for v in table§.values())|all(table§)»
t§ = $T * sum(table§.values())
--
table§["c"] = $I
table§["a"] = 0
table§.popitem()
== unpacking
pair§ = [1, $I]
--
«a§, b§ = pair§|(a§, *b§) = pair§|*a§, b§ = pair§|a§, (b§, c§) = n, pair§|[a§, b§] = pair§[::-1]|a§ = b§ = pair§»
o§ = [a§, b§]
t§ = $T + len(pair§)
--
pair§[1] = $I
pair§ = (5, 6)
pair§ = "ab"
pair§ = {"k": 1, "l": 2}
== match
class Point§:
    __match_args__ = ("a", "b")
    def __init__(self, a, b):
        self.a, self.b = a, b
subject§ = «Point§(1, 2)|[1, 2, 3]|{"k": 1}|2|"s"|None»
--
match «subject§|n|[n, 1]|Point§(n, 2)»:
    case Point§(1, b):
        k§ = b
    case [first, *rest] if len(rest) > 1:
        k§ = len(rest)
    case {"k": v, **others}:
        k§ = v + len(others)
    case int(v):
        k§ = v
    case str() | None:
        k§ = 7
    case _:
        k§ = 8
t§ = $T * k§
--
subject§ = Point§(1, 5)
subject§ = [1, 2, 3, 4]
subject§ = {"k": 4, "l": 2}
subject§ = True
Point§.__match_args__ = ("b", "a")
subject§ = None
== loop
limit§ = $I
--
t§ = $T
for i§ in range(«limit§|n % 4|3|1, limit§|limit§, 0, -1»):
    $BRANCH
    «if i§ == 2: break|pass|continue»
else:
    LOG.append("else")
--
limit§ = $I
limit§ = 4
range = (lambda *a: [1, 2])
== while
class Flag§:
    on = 3
--
t§ = $T
while Flag§.on > 0:
    Flag§.on -= 1
    t§ = t§ * 2
    $BRANCH
o§ = Flag§.on
--
Flag§.on = $I
Flag§.on = 2
== branch on a number
level§ = $I
--
if «level§ > 1|n > 1|level§|not level§|$N == 2|level§ is 2|0 < level§ < 3|n in (1, 2)|isinstance(n, bool)|level§ == n»:
    $BRANCH
    t§ = $T + 1
else:
    t§ = $T - 1
--
level§ = $I
level§ = True
level§ = 0
level§ = None
level§ = 1.0
== branch on data
--
if $T.«sum() > 3|max() > 1|numel() > 3|any()|mean().item() > 0.5»:
    t§ = $T + 1
else:
    t§ = $T - 1
== item
--
k§ = «$T.sum().item()|$T.max().item() if $T.numel() else 0|$T.numel()|float($T.sum())|int($T.sum())|bool($T.sum() > 1)»
o§ = [round(k§, 2)]
t§ = $T + k§
== list of numbers
--
o§ = $T.«tolist|flatten().tolist|sum().item|shape.__len__|size().numel»()
t§ = $T + torch.tensor(«[1.0, $N, 2.0]|n|$T[0].tolist() if $T.shape[0] else [0.0]|[n, n, n]»)
== try
--
try:
    $BRANCH
    «raise ValueError("v", n)|pass|1 // n|LOG.missing|[][n]|{}["k"]|assert n == 2, "not two"|torch.ones(2) + torch.ones(3)|int("x")|raise KeyError|undefined§|None + n»
except «(ValueError, ZeroDivisionError)|Exception|LookupError|(AttributeError, AssertionError)|BaseException» as error:
    o§a = [type(error).__name__, str(error)[:60]]
    LOG.append("caught")
except Exception:
    LOG.append("other")
    «raise|pass»
else:
    LOG.append("fine")
finally:
    LOG.append("finally")
t§ = $T + 1
== raise and chain
class Failure§(Exception):
    def __init__(self, *args, code=1):
        super().__init__(*args)
        self.code = code
def fail§(v):
    try:
        raise KeyError(v)
    except KeyError as error:
        error.add_note("note")
        raise Failure§("f", v, code=v) «from error|from None|»
--
try:
    fail§($N)
except Failure§ as error:
    kept§ = error
    o§ = [error.code, error.args, error.__cause__ is None, error.__suppress_context__, type(error.__context__).__name__, getattr(error.__context__, "__notes__", [])]
    o§a = [«error.__traceback__.tb_lineno|traceback.extract_tb(error.__traceback__)[-1].name|len(traceback.extract_tb(error.__traceback__))|traceback.format_exception_only(error)|sys.exc_info()[0].__name__»]
t§ = $T * 2
--
Failure§.__str__ = lambda self: "changed"
fail§ = lambda v: None
== raise out
--
$BRANCH
LOG.append("before")
t§ = $T * 2
if «n == 3|n > 2|$N == 0|n is True|len(LOG) > 6»:
    raise «ValueError(n)|KeyError("out")|RuntimeError("stop", n)|StopIteration(n)|ExceptionGroup("g", [ValueError(1)])»
LOG.append("after")
== exception group
--
try:
    raise ExceptionGroup("g", [ValueError(n), TypeError("t"), ExceptionGroup("h", [ValueError(2)])])
except* ValueError as group:
    o§ = [len(group.exceptions), group.message]
    LOG.append("value")
except* TypeError as group:
    LOG.append(len(group.exceptions))
t§ = $T + 1
== finally wins
def wins§(v):
    for i in range(3):
        try:
            «return v|raise ValueError|if v == 2: break|continue»
        finally:
            LOG.append(i)
            «return v + 1|pass|if i: break»
    return 4
--
try:
    k§ = wins§($N)
except ValueError:
    k§ = 0
k§ = k§ or 0
t§ = $T * k§
== torch error
--
try:
    t§ = «torch.ones(2) @ torch.ones(3)|$T.reshape(7)|torch.cat([])|$T[n + 10]|$T.view(-1, -1)|F.linear($T, torch.ones(2, 2))|torch.stack([$T, W[0]])|$T.squeeze(5)|$T.add_(torch.ones(5))|$T.transpose(0, 7)|torch.zeros(-1)|F.one_hot($T)|torch.tensor("a")|$T.nothing|torch.nothing§($T)|$T.sum(foo=1)|torch.add($T)»
except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
    o§ = [type(error).__name__, str(error).split("\\n")[0][:50]]
    t§ = $T + 1
== assertion
bound§ = $I
--
assert «bound§ < 9|n < 5|$T.shape[1] == 3|isinstance(n, int)|bound§», «f"bound {bound§}"|n|(n, 1)»
t§ = $T + 1
--
bound§ = 10
bound§ = 0
== closure
def outer§():
    count = $I
    hidden = [1]
    def add(v):
        nonlocal count
        count += 1
        «hidden.append(count)|pass»
        return v + count
    def read():
        return count, hidden
    return add, read
add§, read§ = outer§()
--
t§ = add§($T)
o§ = read§()
--
add§(1)
add§.__closure__[0].cell_contents = $I
add§, read§ = outer§()
read§()[1].append(5)
del add§.__closure__[1].cell_contents
== closures in a loop
made§ = [lambda v, k=k: v * k + len(made§) for k in range(3)]
late§ = [lambda v: v + bias§ for _ in range(2)]
bias§ = $I
--
t§ = «made§[1]|late§[0]|made§[-1]|made§[n % len(made§)]»($T)
o§ = [f(1) for f in made§]
--
bias§ = $I
made§.pop()
made§[1].__defaults__ = (7,)
late§[0].__code__ = (lambda v: v - bias§).__code__
made§.append(late§[0])
del bias§
== function changed
def shift§(v, by=$I, *, scale=$I):
    return v * scale + by
def other§(v, by=3, *, scale=2):
    return v - by
shift§.extra = $I
--
t§ = shift§($T«|, $N|, scale=$N») + shift§.extra
o§ = «shift§.__name__|shift§.__defaults__|shift§.__kwdefaults__|shift§.__code__.co_argcount|str(inspect.signature(shift§))|shift§.__doc__|hasattr(shift§, "more")|shift§.__module__|shift§.__dict__»
«pass|shift§.extra = $N»
--
shift§.__defaults__ = (5,)
shift§.__defaults__ = None
shift§.__kwdefaults__ = {"scale": 6}
shift§.__code__ = other§.__code__
shift§.extra = $I
shift§ = other§
shift§.more = 1
del shift§.extra
shift§.__kwdefaults__["scale"] = 4
shift§.__name__ = "renamed"
== global written
total§ = $I
def bump§(v):
    global total§
    total§ += 1
    return v * total§
--
t§ = bump§($T)
o§ = [total§, globals()["total§"]]
«pass|globals()["fresh§"] = n|globals().pop("fresh§", None)|globals().update(total§=n)»
--
total§ = $I
bump§.__globals__["total§"] = 4
del total§
bump§ = lambda v: v
total§ = 2.5
== builtin shadowed
values§ = [3, 1, 2]
--
k§ = «len(values§)|max(values§)|sum(values§)|min(values§)|abs(-n)|int(2.5)|sorted(values§)[0]|round(2.5)|pow(2, n % 5)»
t§ = $T * k§
--
len = lambda v: 7
max = lambda v: 8
builtins.len = lambda v, old=builtins.len: old(v)
del len
sum = min
abs = lambda v: 4
builtins.sum = lambda v, old=builtins.sum: old(v) + (1 if v is values§ else 0)
round = int
values§.append(5)
== decorator
def logged§(f):
    @functools.wraps(f)
    def wrapper(*args, **named):
        wrapper.calls += 1
        «LOG.append(f.__name__)|pass»
        return f(*args, **named)
    wrapper.calls = 0
    return wrapper
@logged§
def twice§(v, k=2):
    return v * k
--
t§ = twice§($T«|, k=$N»)
o§ = [twice§.calls, twice§.__name__, twice§.__wrapped__.__defaults__]
--
twice§.calls = 0
twice§.__wrapped__.__defaults__ = (5,)
twice§ = twice§.__wrapped__; twice§.calls = 1; twice§.__wrapped__ = twice§
twice§.__closure__[0].cell_contents = lambda v, k=2: v - k
== nested function
--
def inner§(u§«|, *rest|, k=2»):
    $INNER
    return $R
t§ = inner§($T)
== recursion
def depth§(v, left):
    LOG.append(left)
    return v if left <= 0 else depth§(v * 2, left - 1)
--
t§ = depth§($T, «$N % 4|$I|2»)
--
depth§ = lambda v, left: v
== locals
--
here§ = $N
o§ = «sorted(locals())[:2]|"here§" in locals()|locals()["here§"]|eval("here§ + 1")|"W" in globals()|eval("n", {"n": 4})|sys._getframe().f_code.co_name|sys._getframe().f_locals["here§"]|callable(vars)|inspect.currentframe().f_code.co_name|dir()[0]»
t§ = $T + here§
== exec
space§ = {"v": $I}
--
exec("w = v * 2", space§)
t§ = $T * space§["w"]
o§ = eval("v + 1", space§)
--
space§["v"] = $I
"""
