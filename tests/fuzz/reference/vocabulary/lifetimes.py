"""Caches, weak references, finalizers, and what is absent."""

TEXT = """
== lru cache
@functools.lru_cache(maxsize=«None|1|2|128|0»«|, typed=True»)
def cached§(v):
    LOG.append(("miss", v if isinstance(v, (int, float, str)) else type(v).__name__))
    return v * 2 + scale§
scale§ = $I
--
k§ = cached§(«$N|$I|2.0|True»)
o§ = tuple(cached§.cache_info())«|[:2]|[3:]»
t§ = $T * k§
--
cached§.cache_clear()
cached§($I)
cached§(2)
scale§ = $I
cached§ = functools.lru_cache(cached§.__wrapped__)
cached§.cache_clear(); scale§ = 9
== cache on a method
class Table§:
    factor = $I
    @functools.«lru_cache(maxsize=None)|cache»
    def row(self, v):
        LOG.append("row")
        return v * self.factor
table§ = Table§()
--
k§ = table§.row(«$N|$I»)
t§ = $T + table§.row(2)
o§ = Table§.row.cache_info().hits
--
table§.factor = $I
Table§.row.cache_clear()
table§ = Table§()
Table§.factor = $I; Table§.row.cache_clear()
table§.row(2)
== cache of tensors
@functools.cache
def mask§(size):
    return torch.ones(size, 1) * factor§
factor§ = $I
--
t§ = $T * mask§($T.shape[0])
o§ = mask§.cache_info().currsize
«pass|mask§(n + 5)»
--
mask§.cache_clear()
mask§(2).add_(1)
factor§ = $I; mask§.cache_clear()
mask§.__wrapped__.__globals__["factor§"] = 4
== cached property
class Lazy§:
    base = $I
    @functools.cached_property
    def value(self):
        LOG.append("computed")
        return self.base * «2|torch.ones(3)»
lazy§ = Lazy§()
--
t§ = $T + lazy§.value
o§ = "value" in lazy§.__dict__
«pass|del lazy§.value»
--
del lazy§.value
lazy§.base = $I
lazy§.value = $I
lazy§ = Lazy§()
lazy§.__dict__.pop("value", None)
Lazy§.base = $I; lazy§.__dict__.clear()
== hand-made cache
class Cache§:
    store = {}
    limit = «1|2|3»
def lookup§(key, make):
    if key not in Cache§.store:
        LOG.append(key)
        if len(Cache§.store) >= Cache§.limit:
            Cache§.store.pop(next(iter(Cache§.store)))
        Cache§.store[key] = make()
    return Cache§.store[key]
--
t§ = $T + lookup§(«$N|"a"|$T.shape[0]|($N, 1)|$T.dtype|tuple($T.shape)», lambda: «torch.ones(3) * 2|3|$N»)
o§ = len(Cache§.store)
--
Cache§.store.clear()
Cache§.limit = $I
Cache§.store[2] = 8
Cache§.store = {}
Cache§.store.popitem() if Cache§.store else None
== cache in a default
def memo§(key, seen={}):
    if «key in seen|seen.get(key) is not None|len(seen) > 1 and key in seen»:
        return seen[key]
    «seen[key] = key * 2 + 1|seen.setdefault(key, 4)|seen.update({key: 5})»
    return seen[key]
--
k§ = memo§($N)
t§ = $T * k§
--
memo§.__defaults__[0].clear()
memo§.__defaults__[0][2] = $I
memo§.__defaults__ = ({},)
== tensor kept between calls
class State§:
    last = None
    count = 0
--
if State§.last is not None«| and State§.last.shape == $T.shape»:
    t§ = $T + State§.last.mean()
else:
    t§ = $T * 3
State§.last = $T«|.detach()|.clone()»
State§.count += 1
o§ = State§.count
--
State§.last = None
del State§.last
State§.last = torch.ones(2, 3)
State§.last.zero_() if State§.last is not None else None
State§.count = $I
== weak reference
class Referent§:
    value = $I
strong§ = Referent§()
weak§ = weakref.ref(strong§«|, lambda ref: LOG.append("dead")»)
--
alive§ = weak§()
k§ = «alive§ is not None|alive§ is strong§|alive§.value if alive§ is not None else -1»
del alive§
t§ = $T * 2 if k§ else $T + 1
--
strong§ = None
del strong§
strong§ = Referent§()
weak§ = weakref.ref(strong§)
Referent§.value = $I
== weak reference inside
class Referent§:
    def __init__(self, v):
        self.v = v
box§ = [Referent§(1)]
--
thing§ = «Referent§($T)|box§[0]|box§.pop() if box§ else None|Referent§($N)»
ref§ = weakref.ref(thing§«|, lambda ref: LOG.append("gone")») if thing§ is not None else (lambda: None)
t§ = $T + «thing§.v if thing§ is not None else 1|1»
del thing§
o§ = ref§() is None
--
box§.append(Referent§(2))
box§.clear()
== weak reference to a tensor
buffer§ = torch.ones(3)
keep§ = [buffer§]
weak§ = weakref.ref(buffer§)
--
seen§ = weak§()
t§ = $T + (seen§ if seen§ is not None else 5)
o§ = [seen§ is buffer§, weak§() is None]
--
buffer§ = None; keep§.clear()
buffer§ = torch.zeros(3)
keep§.clear()
weak§ = weakref.ref(X0)
== weak containers
class Key§:
    pass
key§ = Key§(); spare§ = Key§()
weakmap§ = weakref.«WeakKeyDictionary|WeakKeyDictionary»({key§: $I})
values§ = weakref.WeakValueDictionary(a=key§)
members§ = weakref.WeakSet([key§, spare§])
--
k§ = «weakmap§[key§] if key§ in weakmap§ else 0|len(members§)|len(values§)|len(weakmap§)|weakmap§.get(spare§, 3)|spare§ in members§|"a" in values§»
t§ = $T * k§
«pass|weakmap§[spare§] = $N|members§.add(Key§())|values§["b"] = spare§|temp§ = Key§(); members§.add(temp§)|members§.discard(spare§)»
o§ = [len(weakmap§), len(members§), len(values§), "b" in values§]
--
key§ = Key§()
spare§ = Key§()
weakmap§[key§] = $I
members§.clear()
weakmap§[spare§] = 2
values§["a"] = spare§
== weak method and proxy
class Speaker§:
    def say(self):
        return $I
speaker§ = Speaker§()
method§ = weakref.WeakMethod(speaker§.say)
proxy§ = weakref.proxy(speaker§)
--
say§ = method§()
k§ = say§() if say§ is not None else -1
del say§
t§ = $T + k§
try:
    o§ = proxy§.say()
except ReferenceError:
    o§ = "dead"
--
speaker§ = None
Speaker§.say = lambda self: $I
speaker§.say = lambda: 9
speaker§ = Speaker§()
== finalizer
class Ended§:
    pass
ended§ = Ended§()
finalizer§ = weakref.finalize(ended§, LOG.append, "final")
--
k§ = finalizer§.alive
t§ = $T * (2 if finalizer§.alive else 3)
o§ = «finalizer§.peek() is None|finalizer§.atexit|weakref.getweakrefcount(ended§)»
--
ended§ = None
finalizer§()
finalizer§.detach()
finalizer§.atexit = False
== del method
class Dying§:
    def __init__(self, v):
        self.v = v
    def __del__(self):
        LOG.append(("del", self.v))
dying§ = [Dying§(1), Dying§(2)]
--
«temp§ = Dying§($N); del temp§|dying§.clear()|dying§.append(Dying§($N))|del dying§[:1]|dying§[:] = []|temp§ = Dying§($N)»
t§ = $T + len(dying§)
o§ = len(LOG)
--
dying§.clear()
dying§.append(Dying§(7))
Dying§.__del__ = lambda self: LOG.append("other")
== cycle
class Loop§:
    pass
loops§ = []
--
a§ = Loop§(); a§.me = a§
ref§ = weakref.ref(a§)
loops§.append(ref§)
t§ = $T * 2
del a§
«gc.collect()|pass»
o§ = [one() is None for one in loops§]«[:0]|»
--
loops§.clear()
== absent attribute
class Options§:
    pass
options§ = Options§()
--
k§ = «getattr(options§, "scale", 2)|hasattr(options§, "scale")|"scale" in options§.__dict__|getattr(Options§, "scale", 3)|options§.__dict__.get("scale", 1)|vars(options§).get("scale", 4)»
t§ = $T * k§
«pass|options§.extra = $N»
try:
    o§ = options§.scale
except AttributeError:
    o§ = "absent"
--
options§.scale = $I
Options§.scale = $I
del options§.scale
Options§.__getattr__ = lambda self, name: 6
options§.__class__ = type("Options§", (), {"scale": 7})
== absent key
known§ = {"a": $I}
--
k§ = «known§.get("b", 2)|"b" in known§|known§.setdefault("b", $N)|known§.pop("b", 3)|len(known§)|known§.get("a")|known§.pop("a", 1)|bool(known§)|"b" not in known§.keys()|2 in known§.values()|("a", 2) in known§.items()»
t§ = $T + k§
try:
    o§ = known§["c"]
except KeyError as error:
    o§ = error.args
--
known§["b"] = $I
known§["c"] = $I
known§.clear()
known§.update(a=5, b=6)
known§ = collections.defaultdict(int)
del known§["a"]
known§["a"] = None
== absent element
items§ = [$I, $I]
names§ = {"x", "y"}
--
k§ = «3 in items§|"z" in names§|len(items§)|items§.count(3)|items§[-1]|"x" in names§|bool(items§)|names§ == {"x"}|items§ == [1]|items§ != []|len(names§)»
t§ = $T * (2 if k§ else 3)
try:
    o§ = «items§[2]|items§.index(3)|items§.pop(2)|names§.remove("z")»
except (IndexError, ValueError, KeyError) as error:
    o§ = type(error).__name__
--
items§.append(3)
items§.pop()
items§.clear()
names§.add("z")
names§.discard("x")
items§[0] = 3
items§ = (3,)
names§ = frozenset("z")
== absent global
def reader§():
    try:
        return missing§
    except NameError:
        return 1
--
k§ = «reader§()|globals().get("missing§", 2)|"missing§" in globals()|hasattr(sys.modules[__name__], "missing§")|getattr(sys.modules[__name__], "missing§", 3)»
t§ = $T * k§
--
missing§ = $I
del missing§
builtins.missing§ = 7
globals()["missing§"] = $I
== absent module
--
k§ = «"plugin§" in sys.modules|sys.modules.get("plugin§") is not None|hasattr(sys.modules.get("plugin§"), "on")»
try:
    import plugin§
    o§ = getattr(plugin§, "on", "none")
except ImportError:
    o§ = "no module"
t§ = $T + (3 if k§ else 4)
--
sys.modules["plugin§"] = types.ModuleType("plugin§")
sys.modules.pop("plugin§", None)
sys.modules["plugin§"] = types.SimpleNamespace(on=1)
sys.modules["plugin§"] = None
== module attribute
settings§ = types.ModuleType("settings§"); settings§.scale = $I
sys.modules["settings§"] = settings§
--
«import settings§ as read§|from settings§ import scale as read§|read§ = sys.modules["settings§"]|read§ = settings§»
t§ = $T * getattr(read§, "scale", read§ if isinstance(read§, int) else 1)
o§ = hasattr(settings§, "extra")
--
settings§.scale = $I
settings§.extra = 1
del settings§.scale
sys.modules["settings§"] = types.SimpleNamespace(scale=8)
settings§.__getattr__ = lambda name: 5
settings§ = types.SimpleNamespace(scale=3)
== environment
os.environ["FUZZ§"] = "1"
--
k§ = «int(os.environ.get("FUZZ§", "4"))|"FUZZ§" in os.environ|len(os.getenv("FUZZ§") or "")|int(os.getenv("OTHER§", "2"))»
t§ = $T * k§
«pass|os.environ["FUZZ§"] = str(n)»
--
os.environ["FUZZ§"] = "7"
os.environ.pop("FUZZ§", None)
os.environ["OTHER§"] = "5"
os.putenv("FUZZ§", "3")
== reference count
held§ = [object(), object()]
--
o§ = «len(gc.get_referents(held§))|gc.isenabled()|sys.getrefcount(held§) > 0|gc.is_tracked(held§)|len(gc.get_referrers(held§)) > 0»
t§ = $T + len(held§)
--
held§.pop()
gc.disable()
gc.enable()
"""
