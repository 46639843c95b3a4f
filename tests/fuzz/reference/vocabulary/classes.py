"""Classes: the data model of Python's language reference."""

TEXT = """
== descriptor
class Descriptor§:
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        LOG.append("get")
        return instance.__dict__.get("_" + self.name, «$I|0»)
    «def __set__(self, instance, value):|def put(self, instance, value):»
        instance.__dict__["_" + self.name] = value + 1
class Owner§:
    field = Descriptor§()
owner§ = Owner§()
--
k§ = owner§.field
«pass|owner§.field = $N»
t§ = $T + owner§.field
--
owner§.field = $I
owner§.__dict__["field"] = $I
del Owner§.field
Owner§.field = $I
Descriptor§.__get__ = lambda self, instance, owner=None: $I
Descriptor§.__set__ = lambda self, instance, value: LOG.append(value)
owner§._field = $I
== slots
class Slotted§:
    __slots__ = ("a", "b"«|, "__dict__"|, "__weakref__"»)
    def __init__(self, a):
        self.a = a
slotted§ = Slotted§(«$I|torch.ones(3)»)
--
o§ = «hasattr(slotted§, "b")|getattr(slotted§, "b", None) is None|[slotted§.a]»
t§ = $T + «slotted§.a|getattr(slotted§, "b", 1)»
--
slotted§.b = $I
slotted§.a = $I
del slotted§.b
slotted§ = Slotted§($I)
slotted§.a = torch.ones(3)
== slots set inside
class Slotted§:
    __slots__ = ("a", "b")
slotted§ = Slotted§()
--
slotted§.«a|b» = «$N|$T»
o§ = hasattr(slotted§, "«a|b»")
«pass|del slotted§.a»
--
slotted§.a = $I
del slotted§.a
== getattr hook
class Fallback§:
    known = $I
    def __getattr__(self, name):
        LOG.append(name)
        if name.startswith("_"):
            raise AttributeError(name)
        return «len(name)|self.known|torch.ones(3)»
fallback§ = Fallback§()
--
t§ = $T * fallback§.«missing|known|other»
o§ = hasattr(fallback§, "«_hidden|missing|known»")
--
fallback§.missing = $I
fallback§.__dict__["other"] = $I
Fallback§.missing = $I
del fallback§.missing
del Fallback§.known
Fallback§.__getattr__ = lambda self, name: $I
== getattribute hook
class Watched§:
    value = $I
    def __init__(self):
        self.own = $I
    def __getattribute__(self, name):
        if name == "own":
            LOG.append(name)
        value = «object.__getattribute__(self, name)|super().__getattribute__(name)»
        return value
watched§ = Watched§()
--
t§ = $T + watched§.«own|value»
o§ = [watched§.own, "own" in watched§.__dict__]
--
watched§.own = $I
Watched§.value = $I
watched§.value = $I
Watched§.__getattribute__ = lambda self, name: $I
del Watched§.__getattribute__
== instancecheck
class Meta§(type):
    answer = «True|False»
    def __instancecheck__(cls, instance):
        LOG.append("instancecheck")
        return cls.answer «|or type.__instancecheck__(cls, instance)»
    def __subclasscheck__(cls, other):
        return cls.answer
class Checked§(metaclass=Meta§):
    pass
--
k§ = isinstance(«$T|n|Checked§()|LOG», «Checked§|(str, Checked§)»)
o§ = issubclass(«int|Checked§», Checked§)
t§ = $T + 1 if k§ else $T - 1
--
Meta§.answer = «True|False»
Checked§.answer = «True|False»
Meta§.__instancecheck__ = lambda cls, instance: False
del Meta§.__subclasscheck__
== subclasshook
class Hooked§(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        LOG.append(other.__name__)
        return «hasattr(other, "quack")|any("quack" in one.__dict__ for one in other.__mro__) or NotImplemented|NotImplemented»
class Duck§:
    «quack = 1|walk = 1»
duck§ = Duck§()
--
k§ = «isinstance(duck§, Hooked§)|issubclass(Duck§, Hooked§)|isinstance(n, Hooked§)»
t§ = $T * 2 if k§ else $T * 3
--
Duck§.quack = 2
Hooked§.register(Duck§)
del Duck§.quack
Hooked§.register(int)
== virtual subclass
class Base§(abc.ABC):
    «pass|f = 1»
class Plain§:
    pass
plain§ = Plain§()
--
k§ = isinstance(«plain§|n|$T|[1]», Base§)
o§ = isinstance(«n|plain§|LOG|"a"|$T», collections.abc.«Iterable|Sized|Hashable|Callable|Sequence|Mapping|Container»)
t§ = torch.where(torch.tensor(k§), $T, -$T)
--
Base§.register(Plain§)
Base§.register(«int|torch.Tensor|list»)
collections.abc.Sized.register(Plain§)
Plain§.__len__ = lambda self: 2
Plain§.__hash__ = None
Plain§.__iter__ = lambda self: iter([1])
== protocol
@typing.runtime_checkable
class Protocol§(typing.Protocol):
    size: int
    def area(self) -> int: ...
class Shape§:
    def __init__(self):
        self.«size|length» = $I
    def area(self):
        return 4
shape§ = Shape§()
--
k§ = isinstance(«shape§|n|$T», Protocol§)
t§ = $T + (3 if k§ else 0)
--
shape§.size = $I
del shape§.size
Shape§.size = $I
del Shape§.area
shape§.area = lambda: 5
== init subclass
class Registry§:
    made = []
    def __init_subclass__(cls, weight=1, **rest):
        super().__init_subclass__(**rest)
        Registry§.made.append(cls)
        cls.weight = weight
class One§(Registry§, weight=2):
    pass
--
t§ = $T * sum(one.weight for one in Registry§.made)
o§ = «len(Registry§.__subclasses__())|[one.__name__ for one in Registry§.made]|One§.__mro__[1] is Registry§»
--
class Two§(Registry§): pass
One§.weight = $I
Registry§.made.clear()
Registry§.made.pop()
== class made inside
--
class Local§(«object|int|list|Exception»):
    tag = «$N|$I»
    def double(self):
        return self.tag * 2
k§ = Local§().double()
o§ = «Local§.__name__|Local§.__qualname__|Local§.__bases__[0].__name__|type(Local§()).__mro__[-1].__name__»
== type called
--
Made§ = type("Made§", («|int,|dict,»), {"tag": $N, "f": lambda self: «n|2»})
k§ = Made§().f()
o§ = [Made§.tag, Made§.__name__]
== class getitem
class Generic§:
    def __class_getitem__(cls, item):
        return (cls.scale, item)
    scale = $I
class Typed§(typing.Generic[typing.TypeVar("V")]):
    pass
--
k§ = Generic§[$N][0]
o§ = «typing.get_args(Typed§[int])[0] is int|list[int].__origin__ is list|Generic§[«1|"a"»]»
t§ = $T * Generic§[1][0]
--
Generic§.scale = $I
Generic§.__class_getitem__ = classmethod(lambda cls, item: ($I, item))
== property
class Area§:
    def __init__(self):
        self.side = $I
    @property
    def area(self):
        LOG.append("area")
        return self.side * 2
    @area.setter
    def area(self, value):
        self.side = value
    @area.deleter
    def area(self):
        self.side = 0
area§ = Area§()
--
t§ = $T + area§.area
«area§.area = $N|del area§.area|area§.side += 1|pass»
--
area§.side = $I
Area§.area = property(lambda self: $I)
Area§.area = $I
del Area§.area
== enum
class Color§(enum.«Enum|IntEnum»):
    RED = 1
    BLUE = 2
    @property
    def half(self):
        return self.value / 2
    @classmethod
    def _missing_(cls, value):
        return cls.RED
color§ = Color§.RED
--
k§ = Color§(«n|1|2»).value
o§ = [color§.name, color§ is Color§.RED, len(Color§), Color§["BLUE"] == 2, [one.name for one in Color§]]
t§ = $T * color§.half
--
color§ = Color§.BLUE
Color§.BLUE._value_ = $I
Color§.half = $I
== flag
class Flag§(enum.«Flag|IntFlag»):
    A = enum.auto()
    B = enum.auto()
flag§ = Flag§.A
--
k§ = int((flag§ | Flag§.«A|B»).value)
o§ = [bool(flag§ & Flag§.B), Flag§.A in flag§, (~flag§).value]
--
flag§ = Flag§.B
flag§ |= Flag§.B
== dataclass
@dataclasses.dataclass(«|frozen=True|order=True|eq=False|slots=True|unsafe_hash=True»)
class Config§:
    scale: float = $F
    items: list = dataclasses.field(default_factory=list)
    extra: dataclasses.InitVar[int] = 0
    def __post_init__(self, extra):
        LOG.append(extra)
config§ = Config§($F)
--
t§ = $T * config§.scale
o§ = «dataclasses.asdict(config§)|dataclasses.replace(config§, scale=$F, extra=1)|Config§($F) == config§|[f.name for f in dataclasses.fields(config§)]|repr(Config§($F))|dataclasses.astuple(config§)|Config§($N, [$N])|hash(config§) == hash(config§)»
«pass|config§.items.append($N)|config§.scale = $N»
--
config§.scale = $F
config§.items.append($I)
config§ = Config§($F, [1])
Config§.scale = $F
== namedtuple
Point§ = «collections.namedtuple("Point§", "a b")|collections.namedtuple("Point§", ["a", "b"], defaults=[2])|typing.NamedTuple("Point§", [("a", int), ("b", int)])»
point§ = Point§($I, $I)
--
k§ = point§.«a|b»
o§ = «point§._replace(a=$N)|point§._asdict()|Point§(*point§) == point§|Point§._fields|Point§(n, $N)|point§ + (1,)|point§[::-1]»
t§ = $T * point§[0] + point§.b
--
point§ = Point§($I, $I)
Point§.a = property(lambda self: $I)
Point§.b = $I
== number-like
class Amount§:
    def __init__(self, v):
        self.v = v
    def __«op:=add|mul|sub|matmul»__(self, other):
        LOG.append("left")
        return «other * self.v|Amount§(self.v + 1)|NotImplemented»
    def __r«op»__(self, other):
        LOG.append("right")
        return «other + self.v|NotImplemented|other»
    def __float__(self):
        return float(self.v)
    def __index__(self):
        return int(self.v)
    def __bool__(self):
        return self.v > 1
    def __eq__(self, other):
        return self.v == getattr(other, "v", other)
    def __hash__(self):
        return self.v
    def __neg__(self):
        return Amount§(-self.v)
amount§ = Amount§($I)
--
o§ = «operator.«op»(amount§, $N)|operator.«op»($N, amount§)|operator.«op»(amount§, W)|operator.«op»(W, amount§)»
k§ = «float(amount§)|operator.index(amount§)|bool(amount§)|hash(amount§)|(-amount§).v|1 if amount§ else 2|1 if amount§ == $N else 0|range(10)[amount§]»
t§ = $T + k§
--
amount§.v = $I
Amount§.__«op»__ = lambda self, other: 7
Amount§.__r«op»__ = lambda self, other: 8
Amount§.__bool__ = lambda self: False
Amount§.__hash__ = lambda self: 5
Amount§.__eq__ = lambda self, other: True
del Amount§.__bool__
Amount§.__index__ = lambda self: 2
Amount§.__len__ = lambda self: 0
== container-like
class Bag§:
    def __init__(self, *items):
        self.items = list(items)
    def __len__(self):
        LOG.append("len")
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]
    def __setitem__(self, index, value):
        self.items[index] = value
    «def __contains__(self, item):|def has(self, item):»
        return item in self.items or item == 7
    «def __iter__(self):|def walk(self):»
        return iter(self.items[::-1])
    «def __reversed__(self):|def back(self):»
        yield from self.items
    def __length_hint__(self):
        return 1
bag§ = Bag§($I, $I, 4)
--
o§ = «list(bag§)|[*bag§]|7 in bag§|$N in bag§|list(reversed(bag§))|len(bag§)|bag§[-1]|bag§[:2]|sum(bag§)|max(bag§)|bool(bag§)|sorted(bag§)|dict(zip(bag§, "abc"))|tuple(enumerate(bag§))|operator.length_hint(bag§)»
t§ = $T * len(bag§) + bag§[0]
«pass|bag§[0] = $N»
--
bag§.items.append(7)
bag§.items.clear()
Bag§.__len__ = lambda self: 1
Bag§.__iter__ = lambda self: iter([5])
Bag§.__contains__ = lambda self, item: False
Bag§.__bool__ = lambda self: False
Bag§.__reversed__ = None
bag§.__len__ = lambda: 0
Bag§.__getitem__ = lambda self, index: 9
== callable-like
class Call§:
    scale = $I
    def __call__(self, v, *rest, **named):
        return v * self.scale + len(rest) + len(named)
call§ = Call§()
--
t§ = call§($T«|, 1|, 1, a=2»)
o§ = [callable(call§), hasattr(call§, "__call__")]
--
Call§.__call__ = lambda self, v, *rest, **named: v + 5
call§.__call__ = lambda v, *rest, **named: v
call§.scale = $I
Call§.scale = $I
== inheritance
class Upper§:
    def value(self):
        return $I
class Other§:
    def value(self):
        return $I + 1
class Lower§(Upper§):
    def value(self):
        return super().value() + 1
lower§ = Lower§()
--
t§ = $T * lower§.value()
o§ = [isinstance(lower§, Other§), type(lower§).__mro__[1].__name__]
--
Lower§.__bases__ = (Other§,)
Upper§.value = lambda self: $I
lower§.value = lambda: $I
lower§.__class__ = Other§
lower§ = Other§()
del Lower§.value
Lower§.value = Other§.value
== attribute chain
class Node§:
    pass
node§ = Node§(); node§.left = Node§(); node§.left.value = $I; Node§.shared = $I
--
t§ = $T + node§.left.value * node§.shared
«pass|node§.left.value += 1|node§.extra = $T|node§.left = node§»
o§ = [hasattr(node§, "right"), getattr(node§, "extra", None) is None]
--
node§.left.value = $I
node§.shared = $I
Node§.shared = $I
del Node§.shared
node§.right = 1
node§.left = Node§(); node§.left.value = 9
del node§.left
node§.extra = 3
Node§.extra = 4
== vars and dir
class Holder§:
    a = 1
holder§ = Holder§(); holder§.b = $I
--
o§ = «sorted(vars(holder§))|"c" in dir(holder§)|"c" in vars(holder§)|sorted(holder§.__dict__.items())|"c" in Holder§.__dict__|len(vars(holder§))|holder§.__dict__.get("c")|list(holder§.__dict__)»
t§ = $T * len(vars(holder§))
«pass|vars(holder§)["c"] = $N|holder§.__dict__.update(d=$N)»
--
holder§.c = 1
Holder§.c = 2
del holder§.b
holder§.__dict__ = {"z": 1}
holder§.__dict__.clear()
== identity
class Thing§:
    def __init__(self):
        self.key = id(self)
    def same(self):
        return id(self) == self.key
thing§ = Thing§(); seen§ = {id(thing§): 1}; other§ = thing§
--
k§ = «thing§.same()|id(thing§) in seen§|thing§ is other§|hash(thing§) == hash(other§)|id(thing§) == id(other§)|thing§ == other§|seen§.get(id(thing§), 0)|thing§ in [other§]|thing§ in {other§: 1}»
t§ = $T + 1 if k§ else $T * 2
--
thing§ = Thing§()
thing§ = copy.copy(thing§)
thing§.key = 0
other§ = Thing§()
seen§.clear()
seen§[id(thing§)] = 1
Thing§.__eq__ = lambda self, other: False
Thing§.__hash__ = lambda self: 3
== copies
class Copied§:
    def __init__(self):
        self.items = [1, torch.ones(3)]
    «def __copy__(self):|def ignored(self):»
        LOG.append("copy")
        return self
    «def __deepcopy__(self, memo):|def ignored2(self, memo):»
        LOG.append("deepcopy")
        return Copied§()
    «def __reduce__(self):|def ignored3(self):»
        return Copied§, ()
copied§ = Copied§()
--
o§ = copy.«copy|deepcopy»(copied§)
o§a = o§ is copied§
t§ = $T + o§.items[1]
--
copied§.items.append(3)
copied§.items[1] = torch.zeros(3)
Copied§.__deepcopy__ = lambda self, memo: self
Copied§.__copy__ = lambda self: Copied§()
== metaclass call
class Maker§(type):
    count = 0
    def __call__(cls, *args):
        Maker§.count += 1
        return super().__call__(*args)
    def __len__(cls):
        return $I
    def __iter__(cls):
        return iter([1, 2])
    def __getattr__(cls, name):
        return len(name)
class Made§(metaclass=Maker§):
    pass
--
o§ = «type(Made§()).__name__|len(Made§)|list(Made§)|Made§.unknown|Maker§.count»
t§ = $T + «Made§.abc|len(Made§)|Maker§.count»
--
Maker§.__call__ = type.__call__
Made§.unknown = 1
Maker§.__len__ = lambda cls: 5
Made§.abc = $I
== singleton
class Only§:
    only = None
    def __new__(cls, *args):
        if cls.only is None:
            cls.only = super().__new__(cls)
        return cls.only
    def __init__(self, v=1):
        self.v = v
--
k§ = Only§($N).v
o§ = Only§() is Only§()
t§ = $T * Only§(2).v
--
Only§.only = None
Only§.__init__ = lambda self, v=1: None
== singledispatch
@functools.singledispatch
def dispatch§(v):
    return 1
@dispatch§.register
def _(v: int):
    return 2
--
k§ = dispatch§(«$N|1.5|"a"|$T|[1]»)
t§ = $T * k§
--
dispatch§.register(float, lambda v: 5)
dispatch§.register(torch.Tensor, lambda v: 6)
dispatch§.register(bool, lambda v: 7)
dispatch§.register(object, lambda v: 8)
== total ordering
@functools.total_ordering
class Ranked§:
    def __init__(self, v):
        self.v = v
    def __eq__(self, other):
        return self.v == other.v
    def __lt__(self, other):
        LOG.append("lt")
        return self.v < other.v
ranked§ = [Ranked§(3), Ranked§($I)]
--
o§ = «[one.v for one in sorted(ranked§)]|max(ranked§).v|ranked§[0] >= ranked§[1]|min(ranked§, key=lambda one: -one.v).v»
t§ = $T * sorted(ranked§)[0].v
--
ranked§[0].v = $I
ranked§.append(Ranked§(-1))
Ranked§.__lt__ = lambda self, other: self.v > other.v
== static and class methods
class Methods§:
    base = $I
    @staticmethod
    def plain(v):
        return v + 1
    @classmethod
    def of(cls, v):
        return v * cls.base
    def bound(self, v):
        return v - self.base
methods§ = Methods§(); kept§ = methods§.bound
--
t§ = «methods§.plain|Methods§.of|methods§.of|kept§|methods§.bound|functools.partial(methods§.bound)»($T)
o§ = «kept§.__self__ is methods§|methods§.bound == kept§|methods§.bound is methods§.bound|Methods§.of.__self__ is Methods§|kept§.__func__ is Methods§.bound»
--
Methods§.base = $I
methods§.base = $I
Methods§.bound = lambda self, v: v
Methods§.of = staticmethod(lambda v: v)
methods§.plain = lambda v: v
methods§ = Methods§()
kept§ = abs
"""
