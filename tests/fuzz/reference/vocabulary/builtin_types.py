"""Subclasses of builtin types whose special methods are overridden, read by builtins and by torch."""

TEXT = """
== dict subclass
class Dict§(«dict|collections.OrderedDict|collections.UserDict»):
    «def __getitem__(self, key):|def __missing__(self, key):|def get(self, key, default=None):|def nothing(self, key):»
        LOG.append(key)
        return «$I|5»
    «def __contains__(self, key):|def nothing2(self, key):»
        return True
    «def __iter__(self):|def keys(self):|def nothing3(self):»
        return iter(["a", "z"])
    «def items(self):|def nothing4(self):»
        return [("q", 9)]
    «def __len__(self):|def nothing5(self):»
        return 4
dict§ = Dict§(a=$I, b=2)
--
o§ = «dict(dict§)|list(dict§)|sorted(dict§)|{**dict§}|[*dict§]|dict§["a"]|"z" in dict§|dict§.get("a")|dict§.get("zz", 3)|len(dict§)|list(dict§.items())|[k for k in dict§]|dict(a=1) == dict§|(lambda **named: sorted(named))(**dict§)|bool(dict§)|set(dict§)|operator.or_(dict§, {"c": 1})|list(dict§.values())|"".join(dict§)|{k: v for k, v in dict§.items()}|max(dict§)|list(reversed(dict§))|dict.__getitem__(dict§, "a")|tuple(zip(dict§, "ab"))|json.dumps(dict§)|copy.copy(dict§)|list(map(str, dict§))|operator.getitem(dict§, "b")|operator.contains(dict§, "y")|{}.update(dict§)|dict.fromkeys(dict§, 1)»
t§ = $T * len(dict§) + len([*dict§])
«pass|dict§["c"] = $N|dict§.pop("a", None)|dict§.setdefault("d", $N)|dict§.update(e=$N)»
--
dict§["c"] = $I
dict§["a"] = $I
dict§.clear()
Dict§.__getitem__ = lambda self, key: 11
Dict§.__iter__ = lambda self: iter(["m"])
Dict§.__contains__ = lambda self, key: False
Dict§.__len__ = lambda self: 1
Dict§.__missing__ = lambda self, key: 13
del Dict§.__iter__
dict§ = {"a": 3}
== list subclass
class List§(«list|collections.UserList|collections.deque»):
    «def __iter__(self):|def nothing(self):»
        LOG.append("iter")
        return iter([7, 8])
    «def __getitem__(self, index):|def nothing2(self, index):»
        return 3
    «def __len__(self):|def nothing3(self):»
        return 2
    «def __contains__(self, item):|def nothing4(self, item):»
        return item == 99
    «def append(self, item):|def nothing5(self, item):»
        super().append(item + 1)
list§ = List§([$I, 2, 3])
--
o§ = «list(list§)|tuple(list§)|[*list§]|sorted(list§)|sum(list§)|max(list§)|len(list§)|list§[0]|99 in list§|2 in list§|[v for v in list§]|(lambda *a: a)(*list§)|list§ == [1, 2, 3]|[1] + list(list§)|list§.index(2)|list§.count(2)|list(reversed(list§))|list(zip(list§, list§))|list(map(abs, list§))|bool(list§)|set(list§)|dict(enumerate(list§))|any(list§)|torch.tensor(list§)|copy.copy(list§)|list§ * 2|str(list§)|list(itertools.chain(list§, [1]))|functools.reduce(operator.add, list§)|[0].__iadd__(list§)|min(list§, default=1)|statistics.mean(list§)|sorted(list§, key=lambda v: -v)»
t§ = $T * len(list§) + sum(list§)
«pass|list§.append($N)|list§.extend([1])|list§[0] = $N»
--
list§.append(9)
list§.clear()
list§[0] = $I
List§.__iter__ = lambda self: iter([20])
List§.__len__ = lambda self: 3
List§.__getitem__ = lambda self, index: 30
List§.__contains__ = lambda self, item: True
del List§.__iter__
List§.append = lambda self, item: None
list§ = [1, 2]
== set subclass
class Set§(«set|frozenset»):
    «def __iter__(self):|def nothing(self):»
        return iter([5, 6])
    «def __contains__(self, item):|def nothing2(self, item):»
        LOG.append(item)
        return True
    «def __len__(self):|def nothing3(self):»
        return 3
    «def __or__(self, other):|def nothing4(self, other):»
        return {42}
set§ = Set§([$I, 2])
--
o§ = «sorted(set§)|list(sorted([*set§]))|len(set§)|77 in set§|2 in set§|operator.or_(set§, {1})|set§ & {2}|set§ - {2}|{1, 2} <= set§|sum(set§)|sorted(v for v in set§)|set§ == {1, 2}|max(set§)|set(set§)|tuple(sorted(set§))|set§.union([9])|set§.isdisjoint([2])|bool(set§)|frozenset(set§)|set§ ^ {2}|{*set§}|len(operator.or_({1}, set§))»
t§ = $T * len(set§) + sum(set§)
--
set§ = Set§([1, 2, 3])
Set§.__iter__ = lambda self: iter([9])
Set§.__contains__ = lambda self, item: False
Set§.__len__ = lambda self: 1
set§.add(8)
set§ = {1}
del Set§.__iter__
== tuple subclass
class Tuple§(tuple):
    «def __iter__(self):|def nothing(self):»
        return iter([2, 3])
    «def __len__(self):|def nothing2(self):»
        return 2
    «def __getitem__(self, index):|def nothing3(self, index):»
        return 4
    «def __new__(cls, *items):|def make(cls, *items):»
        return super().__new__(cls, *items)
    «def __eq__(self, other):|def nothing4(self, other):»
        return True
    «def __hash__(self):|def nothing5(self):»
        return 1
tuple§ = Tuple§([2, 3])
--
o§ = «list(tuple§)|tuple§[0]|len(tuple§)|[*tuple§]|(lambda *a: a)(*tuple§)|tuple§ + (1,)|hash(tuple§) == hash((2, 3))|tuple§ == (1, 1)|tuple(tuple§)|{tuple§: 1}.get((2, 3))|torch.zeros(tuple§).shape|torch.ones(*tuple§).shape|"%s %s" % tuple§|tuple§ in [(2, 3)]|isinstance(1, (int, str))|sum(tuple§)|max(tuple§)|tuple§.index(3)|tuple§[::-1]|torch.zeros(6).reshape(tuple§).shape»
t§ = $T * len(tuple§)
--
tuple§ = Tuple§([3, 2])
Tuple§.__iter__ = lambda self: iter([6, 1])
Tuple§.__len__ = lambda self: 1
Tuple§.__getitem__ = lambda self, index: 5
Tuple§.__eq__ = lambda self, other: False
del Tuple§.__iter__
== str subclass
class Text§(str):
    «def __eq__(self, other):|def nothing(self, other):»
        LOG.append("eq")
        return other == "b"
    «def __hash__(self):|def nothing2(self):»
        return hash("b")
    «def __len__(self):|def nothing3(self):»
        return 9
    «def upper(self):|def nothing4(self):»
        return "up"
    «def __str__(self):|def nothing5(self):»
        return "text"
    «def __contains__(self, part):|def nothing6(self, part):»
        return True
    «def __format__(self, spec):|def nothing7(self, spec):»
        return "formatted"
    «def __iter__(self):|def nothing8(self):»
        return iter("xy")
    __hash__ = str.__hash__
text§ = Text§("a")
table§ = {"a": 1, "b": 2}
--
o§ = «text§ == "b"|"b" == text§|text§ + "c"|len(text§)|text§.upper()|f"{text§}"|str(text§)|"%s" % text§|"q" in text§|list(text§)|"-".join([text§])|table§.get(text§)|text§ in table§|text§ in ["b"]|getattr(math, Text§("pi"))|{text§: 1}|format(text§)|repr(text§)|sorted([text§, "0"])|text§.replace("a", "z")|text§ != "a"|text§ < "b"|json.dumps(text§)|re.sub("a", "w", text§)»
t§ = $T * len(text§)
--
text§ = Text§("b")
text§ = "b"
Text§.__eq__ = lambda self, other: False
Text§.__len__ = lambda self: 5
Text§.upper = lambda self: "UP"
Text§.__str__ = lambda self: "other"
table§["a"] = $I
table§.pop("b", 0)
== int subclass
class Int§(int):
    «def __add__(self, other):|def nothing(self, other):»
        LOG.append("add")
        return 100
    «def __radd__(self, other):|def nothing2(self, other):»
        return 200
    «def __eq__(self, other):|def nothing3(self, other):»
        return True
    __hash__ = int.__hash__
    «def __index__(self):|def nothing4(self):»
        return 1
    «def __bool__(self):|def nothing5(self):»
        return False
    «def __mul__(self, other):|def nothing6(self, other):»
        return other
    «def __int__(self):|def nothing7(self):»
        return 17
    «def __repr__(self):|def nothing8(self):»
        return "Int"
int§ = Int§(2)
--
o§ = «int§ + 1|1 + int§|int§ == 5|[0, 1, 2][int§]|bool(int§)|int§ * 3|int(int§)|repr(int§)|str(int§)|f"{int§}"|range(int§)|sum([int§, int§])|"a" * int§|max(int§, 1)|int§ in [5]|{int§: 1}.get(2)|int§ is int§|type(int§ + 0).__name__|type(+int§).__name__|divmod(int§, 2)|list(range(3))[int§:]|math.sqrt(int§)|float(int§)|-int§|int§ / 2|torch.ones(int§).shape|[1] * int§|int§ < 3|round(int§)|abs(int§)|not int§|struct.pack("i", int§)»
t§ = $T «+|*» int§
--
int§ = Int§(3)
int§ = 2
Int§.__add__ = lambda self, other: 300
Int§.__radd__ = lambda self, other: 400
Int§.__eq__ = lambda self, other: False
Int§.__bool__ = lambda self: True
Int§.__index__ = lambda self: 0
int§ = True
int§ = 2.0
== float subclass
class Float§(float):
    «def __mul__(self, other):|def nothing(self, other):»
        return 50.0
    «def __rmul__(self, other):|def nothing2(self, other):»
        LOG.append("rmul")
        return 60.0
    «def __float__(self):|def nothing3(self):»
        return 0.5
    «def __gt__(self, other):|def nothing4(self, other):»
        return True
    «def __round__(self, digits=0):|def nothing5(self):»
        return 4
float§ = Float§(1.5)
--
o§ = «float§ * 2|2 * float§|float(float§)|float§ > 9|round(float§)|math.floor(float§)|int(float§)|sum([float§])|max(float§, 3.0)|str(float§)|float§ == 1.5|float§.is_integer()|math.isclose(float§, 1.5)|float§.as_integer_ratio()|sorted([float§, 0.0])|type(float§ + 1).__name__|float§ // 1|-float§|hash(float§) == hash(1.5)»
t§ = $T «+|*» float§
--
float§ = Float§(2.5)
float§ = 1
float§ = float("inf")
Float§.__mul__ = lambda self, other: 70.0
Float§.__gt__ = lambda self, other: False
Float§.__float__ = lambda self: 8.0
== counter and deque
counter§ = collections.Counter(«"aab"|[1, 1, 2]»)
queue§ = collections.deque([1, 2, 3], maxlen=«3|None|4»)
--
o§ = «counter§.most_common(1)|counter§["missing"]|sorted(counter§.elements())|counter§ + counter§|counter§.total()|counter§ - collections.Counter("a")|dict(counter§)|list(queue§)|queue§[-1]|queue§.maxlen|queue§.index(2)|list(itertools.islice(queue§, 1, 2))|counter§ == counter§|+counter§|len(counter§)»
«queue§.append($N)|queue§.rotate(1)|queue§.appendleft($N)|counter§.update("b")|counter§["x"] += 1|counter§.subtract("a")|queue§.extend([7, 8])|queue§.popleft()|pass»
t§ = $T * len(queue§) + counter§["a"]
--
counter§["a"] += 1
counter§["missing"] = 4
del counter§["a"]
counter§.clear()
queue§.append(9)
queue§.clear()
queue§ = collections.deque([5], maxlen=1)
counter§.__class__.__missing__
== defaultdict
made§ = []
def factory§():
    made§.append(1)
    return «$I|len(made§)»
default§ = collections.defaultdict(«factory§|int|lambda: 2|None», {"a": $I})
--
k§ = «default§["a"]|default§["b"]|default§.get("c", 1)|len(default§)»
o§ = ["c" in default§, "b" in default§, default§.default_factory is None, sorted(default§)]
t§ = $T + «default§["a"]|default§["d"]|len(default§)|default§.get("a", 0)»
--
default§["b"] = $I
default§["c"] = 5
del default§["a"]
default§.default_factory = lambda: 4
default§.default_factory = None
default§.clear()
default§.pop("d", 0)
default§.__missing__("c")
== chainmap
first§ = {"a": $I}
chain§ = collections.ChainMap(first§, {"a": 5, "b": 6})
--
k§ = chain§[«"a"|"b"»]
o§ = «dict(chain§)|list(chain§.maps[0])|"c" in chain§|len(chain§)|chain§.new_child({"b": n})["b"]|chain§.get("c")»
t§ = $T * chain§["a"]
«pass|chain§["c"] = $N»
--
first§["a"] = 9
del first§["a"]
chain§.maps[1]["c"] = 1
chain§.maps.reverse()
chain§.maps.append({"c": 2})
== ordered dict
ordered§ = collections.OrderedDict(a=1, b=2, c=$I)
--
o§ = «list(ordered§)|ordered§.popitem(last=False)|list(reversed(ordered§))|ordered§ == {"a": 1}|list(ordered§.values())|next(iter(ordered§))|dict(ordered§)»
«ordered§.move_to_end("b")|ordered§.move_to_end("c", last=False)|ordered§["d"] = $N|pass»
t§ = $T * len(ordered§)
--
ordered§.move_to_end("a")
ordered§["a"] = $I
ordered§.clear()
ordered§["z"] = $I
== bytes and memory
buffer§ = bytearray(b"abcd")
view§ = memoryview(buffer§)
array§ = array.array("«i|d»", [1, 2, 3])
--
o§ = «bytes(view§)|view§[1]|array§.tolist()|sum(array§)|buffer§.count(b"a")|len(view§)|array§[-1]|buffer§[0]|array§.typecode|bytes(buffer§).hex()|int.from_bytes(buffer§[:2], "big")|struct.unpack_from("B", buffer§, 1)|view§.tobytes()|array§.itemsize»
«buffer§[0] = 65|array§.append(4)|view§[2] = 1|struct.pack_into("B", buffer§, 0, 7)|array§[0] = 9|pass»
t§ = $T * buffer§[0] + array§[0]
--
buffer§[0] = $I
array§[0] = $I
array§.append(5)
view§[1] = 3
array§ = array.array("i", [7])
"""
