"""Functions of Python's standard library, most of them written in C, of numbers that change."""

TEXT = """
== math
--
k§ = «math.sqrt(abs(n))|math.floor(n / 2)|math.gcd(n, 6)|math.factorial(n % 5)|math.pow(2, n % 4)|math.hypot(n, 3)|math.comb(5, n % 5)|math.isqrt(abs(n))|math.copysign(2, n)|math.fsum([n, 1])|math.prod([n, 2])|math.log2(abs(n) + 1)|math.trunc(n + 0.5)|math.ceil(n / 3)|math.fmod(n, 2)|math.ldexp(1.0, n % 5)|math.isclose(n, 2)|math.degrees(n)|math.erf(n)|math.dist([n], [1])|math.ulp(n)|math.lcm(n, 2)|math.inf > n|math.cos(n)|math.exp(n % 3)»
t§ = $T * «k§|float(k§)|int(k§)»
== arithmetic of numbers
factor§ = «$I|$F|True|2 + 0j|10 ** 20|-0.0|float("inf")»
--
k§ = «n // 2|n % 3|n ** 2|-n|~n|n << 1|n >> 1|n & 3|divmod(n, 3)[1]|pow(n, 2, 5)|round(n / 3, 2)|abs(n)|int(n / 2)|float(n)|bool(n)|n ^ 5|n / 4|complex(n, 1).real|n.bit_length()|(n + 0.5).is_integer()|n == True|int(str(n))|hash(n)|n.conjugate()|n.numerator|max(n, 1)|min(n, 2, key=lambda v: -v)|n != 2|not n|(n > 1) + 1|1 if n else 2|n is True»
o§ = [type(k§).__name__, type(factor§).__name__, str(factor§)]
t§ = $T + k§
--
factor§ = $I
factor§ = $F
factor§ = None
factor§ = False
== global number
factor§ = «$I|$F|True|0»
--
t§ = $T «+|*|-|/» «factor§|[factor§][0]|float(factor§)|(factor§ + 1)|(factor§ * n)»
o§ = «type(factor§).__name__|factor§ == 1|factor§ is True|str(factor§)|-factor§»
--
factor§ = $I
factor§ = $F
factor§ = True
factor§ = 0
factor§ = -0.0
factor§ = float("inf")
factor§ = float("nan")
factor§ = 2 ** 70
factor§ = 1 + 1j
factor§ = torch.tensor(2.0)
== operator module
box§ = {"a": $I, "b": [1, 2]}
--
o§ = «operator.itemgetter("a")(box§)|operator.itemgetter("a", "b")(box§)|operator.attrgetter("real")(n)|operator.methodcaller("get", "z", n)(box§)|operator.index(n)|operator.truth(n)|operator.is_(n, 2)|operator.concat([n], [1])|operator.countOf([n, 2], 2)|operator.indexOf([1, n], n)|operator.setitem(box§, "c", n)|operator.delitem(box§, "a")|operator.iadd([1], [n])|operator.pos(n)|operator.contains(box§, "a")|operator.length_hint(box§)|operator.call(lambda: n)|operator.xor(n, 3)»
t§ = operator.«add|mul|sub»($T, «$N|$T»)
t§a = operator.«iadd|imul»($T.clone(), $N)
--
box§["a"] = $I
box§["b"].append(3)
box§.clear()
box§["z"] = 4
== functools
def base§(v, k=1, *, s=1):
    return v * k + s
part§ = functools.partial(base§, k=$I)
--
t§ = part§($T«|, s=$N|, k=$N») + functools.reduce(operator.add, [n, 1, 2])
o§ = «part§.keywords|part§.args|part§.func is base§|sorted([n, 3, 1], key=functools.cmp_to_key(lambda a, b: b - a))|functools.partial(part§, s=2).keywords|functools.reduce(lambda a, b: a * b, [1, n], 2)|repr(part§.func.__name__)»
--
part§.keywords["k"] = $I
part§ = functools.partial(base§, s=5)
part§.keywords["s"] = 4
base§.__defaults__ = (6,)
part§.__setstate__((base§, (), {"k": 7}, {}))
== bisect and heapq
ranks§ = [1, 3, 5]
heap§ = [1, 5, 3]
--
o§ = «bisect.bisect_left(ranks§, n)|bisect.insort(ranks§, n)|heapq.heappush(heap§, n)|heapq.heappop(heap§) if heap§ else 0|heapq.nlargest(2, heap§)|heapq.heapreplace(heap§, n) if heap§ else 0|heapq.heapify(heap§)|list(heapq.merge(ranks§, [n]))|bisect.bisect(ranks§, 3, lo=1)|heapq.nsmallest(1, ranks§, key=lambda v: -v)|heapq.heappushpop(heap§, n)|bisect.bisect_right(ranks§, -n, key=lambda v: -v)»
t§ = $T * len(ranks§) + len(heap§)
--
ranks§.insert(0, 0)
ranks§.clear()
heap§.append(0)
heap§.clear()
== text
name§ = "«ab|Layer.0.weight|%d»"
--
o§ = «f"{name§}-{n:03d}"|name§.split(".")|name§ % n if "%" in name§ else name§|name§.replace("a", str(n))|"{:>5}|{}".format(name§, n)|name§.startswith("a")|name§.upper()|re.sub(r"\\\\d+", lambda m: str(n), name§)|re.findall(r"[a-z]", name§)|bool(re.match("a", name§))|string.Template("${n}").substitute(n=n)|name§.encode().hex()|name§[::-1]|name§ * (n % 3)|"".join(sorted(name§))|name§.isidentifier()|name§.partition(".")|name§.zfill(9)|ord(name§[0])|f"{n!r:>4}{n / 3:.2f}"|name§.title()|name§.count("a")|str(n) in name§|name§.translate({97: "z"})|hash(name§) == hash(str(name§))|name§ is sys.intern(name§)|name§.splitlines()»
t§ = $T * (2 if «"a" in name§|name§ == "ab"|len(name§) > 3|name§.endswith("t")|name§ > "b"» else 3)
--
name§ = "b"
name§ = "other.1.a"
name§ = "ab"
name§ = ""
== json and pickle
data§ = {"a": [1, $I], "b": None, "c": 1.5}
--
o§ = «json.dumps(data§, sort_keys=True)|json.loads("[1, 2]")|json.loads(json.dumps(data§))["a"]|pickle.loads(pickle.dumps(data§))|copy.deepcopy(data§)["a"] is data§["a"]|copy.copy(data§)["a"] is data§["a"]|json.dumps({"n": n}, indent=1)|json.loads('{"x": 1}', object_hook=lambda d: n)|len(pickle.dumps(n)) > 1|pickle.loads(pickle.dumps($T)).sum()|copy.deepcopy($T).sum()|copy.deepcopy([W, W])[0] is W»
t§ = $T + len(data§["a"])
«pass|data§["a"].append(n)|data§["t"] = n»
--
data§["a"] = [5]
data§["d"] = $I
data§.pop("c", 0)
json.dumps = lambda *a, **k: "patched"
== struct and bytes
--
o§ = «struct.pack("<ih", n, 2)|struct.unpack("<f", struct.pack("<f", n))|struct.calcsize("iq")|n.to_bytes(4, "little", signed=True)|bytes([abs(n), 2])|bytearray(3)[0]|int.from_bytes(b"ab", "big") + n|bytes(abs(n) % 5)|struct.Struct("h").pack(n)|memoryview(b"abc")[1]»
t§ = $T + n
== decimal and fractions
precise§ = decimal.Decimal("1.10")
third§ = fractions.Fraction(1, 3)
--
o§ = «str(precise§ + n)|str(third§ * n)|decimal.getcontext().prec|str(round(precise§, 1))|float(third§ + n)|third§.limit_denominator(10).numerator|precise§.quantize(decimal.Decimal("0.1"))|str(decimal.Decimal(n) / 3)|third§ < n|statistics.mean([n, 1, 2])|statistics.median([n, 3])|statistics.pstdev([n, 1])|math.floor(third§ * n)|precise§.as_tuple().digits»
k§ = «float(precise§)|float(third§)|int(third§ * 9)»
t§ = $T * k§
--
precise§ = decimal.Decimal("2.5")
third§ = fractions.Fraction(2, 3)
decimal.getcontext().prec = 5
third§ = 0.5
== datetime
day§ = datetime.date(2024, 1, 31)
--
o§ = «(day§ + datetime.timedelta(days=n)).isoformat()|day§.weekday()|day§.replace(year=2025).year|(datetime.date(2024, 3, 1) - day§).days|day§ < datetime.date(2024, 2, 1)|datetime.timedelta(hours=n).total_seconds()|day§.strftime("%Y")|datetime.datetime(2024, 1, 1, n % 20).hour|day§.toordinal() % 7»
t§ = $T * day§.month
--
day§ = datetime.date(2025, 5, 1)
day§ += datetime.timedelta(days=30)
== lists in place
bin§ = [3, 1, $I]
--
«bin§.sort()|bin§.sort(key=lambda v: -v)|bin§.reverse()|bin§.extend(bin§)|operator.iadd(bin§, [n])|operator.imul(bin§, 2)|bin§[::2] = [0] * len(bin§[::2])|del bin§[-1:]|bin§.insert(1, n)|bin§.append(bin§)|bin§[:] = sorted(set(map(repr, bin§)))|bin§[1:1] = [n]|bin§.extend(v for v in (1, n))|bin§.copy().clear()»
o§ = [len(bin§), bin§[:1]]
t§ = $T + len(bin§)
--
bin§.clear()
bin§.append($I)
bin§[:] = [1, 2]
bin§ = [0]
== sets in place
group§ = {1, 2, $I}
--
«group§.add(n)|operator.ior(group§, {n})|group§.discard(n)|group§.update([n, 9])|group§.symmetric_difference_update({1, n})|operator.isub(group§, {2})|group§.intersection_update({1, 2, n})|frozenset(group§)|pass»
o§ = [sorted(group§), len(group§), n in group§, group§ >= {1}, group§.isdisjoint([5])]
t§ = $T * len(group§)
--
group§.clear()
group§.add($I)
group§ = frozenset([1])
== dicts in place
map§ = {"a": 1, "b": $I}
--
«map§.update(c=n)|map§["a"] += n|map§.setdefault("d", []).append(n)|map§.popitem()|operator.ior(map§, {"e": n})|del map§["a"]|map§.pop("b", None)|map§.clear()|map§[n] = n|map§["self"] = map§|pass»
o§ = [list(map§), len(map§), "a" in map§, list(map§.items())[:1], list(reversed(map§))[:1]]
t§ = $T * len(map§)
--
map§["a"] = $I
map§["z"] = $I
map§.clear(); map§["a"] = 1; map§["b"] = 2
map§ = dict(reversed(map§.items()))
map§ = {"b": 1, "a": 2}
== views of a dict
map§ = {"a": 1, "b": $I}
keys§ = map§.keys(); values§ = map§.values(); items§ = map§.items()
--
o§ = «list(keys§)|len(values§)|"a" in keys§|sorted(keys§ & {"a", "z"})|("a", 1) in items§|list(values§)|keys§ == {"a", "b"}|sum(values§)|max(items§)|keys§.mapping["a"]|sorted(keys§ - {"a"})|items§ == map§.items()»
t§ = $T * sum(values§)
«pass|map§["n"] = n»
--
map§["c"] = $I
map§.pop("a", 0)
map§["a"] = 9
== attributes by name
class Target§:
    a = $I
target§ = Target§(); field§ = "a"
--
«setattr(target§, field§, n)|setattr(target§, field§ + "x", n)|delattr(target§, field§) if field§ in vars(target§) else None|object.__setattr__(target§, "q", n)|target§.__dict__["q"] = n|pass»
t§ = $T + getattr(target§, field§, 3)
o§ = [hasattr(target§, field§), sorted(vars(target§))]
--
field§ = "b"
target§.b = $I
Target§.a = $I
del Target§.a
target§ = types.SimpleNamespace(a=3)
== random numbers
random.seed($I)
source§ = random.Random(7)
--
k§ = «random.random()|random.randint(1, 5)|source§.random()|random.uniform(0, n)|random.randrange(9)|source§.randint(0, 3)|random.gauss(0, 1)|random.choice([1, 2, 3])|len(random.sample([1, 2, 3], 2))|random.getrandbits(3)»
t§ = $T * k§
«pass|random.seed(n)|source§.seed(n)|random.shuffle([1, 2, 3])»
--
random.seed(3)
source§.seed(1)
source§ = random.Random(n if "n" in globals() else 2)
random.random()
random.random = lambda: 0.25
== printing
--
print(«"step", n|n, sep="-"|f"{n:>4}"|$T.shape|"a", end=""|[n], file=sys.stdout»)
t§ = $T + 1
«sys.stdout.write("w\\n")|pass»
== warning
--
warnings.warn(«"careful"|f"n is {n}"|UserWarning("u")|"old", DeprecationWarning|"r", RuntimeWarning, stacklevel=2»)
t§ = $T + 1
--
warnings.simplefilter("ignore")
warnings.simplefilter("error")
warnings.simplefilter("always")
== logging
import logging
logger§ = logging.getLogger("fuzz§")
class Handler§(logging.Handler):
    def emit(self, record):
        LOG.append(record.getMessage())
logger§.addHandler(Handler§()); logger§.propagate = False
--
logger§.«warning|info|error»("value %s", n)
k§ = logger§.isEnabledFor(logging.INFO)
t§ = $T + (1 if k§ else 2)
--
logger§.setLevel(logging.INFO)
logger§.disabled = True
logger§.handlers.clear()
logging.disable(logging.CRITICAL)
== threads
local§ = threading.local(); local§.v = $I
lock§ = threading.«Lock|RLock»()
event§ = threading.Event()
--
with lock§:
    t§ = $T + getattr(local§, "v", 5)
o§ = [event§.is_set(), threading.current_thread().name, threading.active_count() >= 1, lock§.acquire(False)]
lock§.release() if o§[-1] else None
--
local§.v = $I
del local§.v
event§.set()
event§.clear()
threading.current_thread().name = "renamed"
== thread inside
results§ = []
--
worker§ = threading.Thread(target=«results§.append, args=(n,)|lambda: results§.append(len(results§))|lambda v=$T: results§.append(v.sum().item())»)
worker§.start()
worker§.join()
t§ = $T + len(results§)
o§ = worker§.is_alive()
--
results§.clear()
== timer and flag
class Shared§:
    done = False
    turns = 0
--
timer§ = threading.Timer(0.01, lambda: setattr(Shared§, "done", True))
timer§.start()
while not Shared§.done:
    «pass|Shared§.turns = 1|time.sleep(0.001)|$T.shape»
timer§.join()
t§ = $T + 1
o§ = Shared§.done
--
Shared§.done = False
== event loop
import asyncio
async def work§(v):
    await asyncio.sleep(0)
    return v * 2
async def all§(v):
    return sum(await asyncio.gather(work§(v), work§(v + 1)))
--
t§ = asyncio.run(«work§|all§»($T))
== context variable
import contextvars
variable§ = contextvars.ContextVar("variable§", default=$I)
--
k§ = variable§.get(«|4»)
t§ = $T * k§
«token§ = variable§.set(n); variable§.reset(token§)|variable§.set(n)|pass|contextvars.copy_context().run(variable§.set, 3)»
o§ = variable§ in contextvars.copy_context()
--
variable§.set($I)
variable§.set(0)
== futures
import concurrent.futures
--
with concurrent.futures.ThreadPoolExecutor(1) as pool§:
    k§ = pool§.submit(«lambda: 3|pow, 2, abs(n) % 5|len, LOG»).result()
t§ = $T + k§
== patched function
--
t§ = «torch.relu|torch.sin|F.relu|F.gelu|torch.add»($T«|») if False else «torch.relu|torch.sin|F.relu|F.gelu|torch.abs»($T)
k§ = «math.floor(2.5)|math.sqrt(4)|operator.add(1, 2)|random.randint(3, 3)»
o§ = k§
--
torch.relu = lambda v: v * 3
torch.sin = torch.cos
F.relu = lambda v, inplace=False: v + 5
F.gelu = torch.tanh
math.floor = lambda v: 9
math.sqrt = math.cos
torch.abs = lambda v: v * 7
operator.add = operator.sub
random.randint = lambda a, b: 8
== patched method
--
t§ = $T.«relu|sin|double().float|add(1).abs|clone»()
o§ = type($T).__name__
--
torch.Tensor.relu = lambda self: self * 3
torch.Tensor.sin = torch.Tensor.cos
torch.Tensor.clone = lambda self: self * 5
torch.Tensor.abs = lambda self: self * 7
torch.Tensor.__add__ = lambda self, other: self * 2
torch.Tensor.double = lambda self: self
"""
