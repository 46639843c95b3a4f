# ruff: noqa: B007, B008, B023, C416, E731, F821, F841, RUF021, RUF059
# mypy: ignore-errors
"""Small functions that are stopped before each of their instructions and go on natively.

`case(*arguments)` registers a function; a case's arguments are made anew by `copy.deepcopy`. Each
function gets a list `log` first, to which it tells what it did. Factories give closures.
"""

import copy
import math

from tests.unit.runtime.continuation_corpus_handlers import HANDLER_CASES, fails

CASES = []


def case(*arguments):
    def register(function):
        CASES.append((function.__name__, lambda: (function, copy.deepcopy(arguments))))
        return function

    return register


def factory(*arguments):
    def register(make):
        CASES.append((make.__name__, lambda: (make(), copy.deepcopy(arguments))))
        return make

    return register


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def tell(log, *values, **named):
    log.append((values, tuple(named.items())))
    return len(log)


@case(3)
def straight(log, x):
    y = x + 1
    z = y * y - x
    log.append(z)
    return z, y


@case(5)
def while_loop(log, n):
    total = 0
    while n > 0:
        if n == 3:
            n -= 1
            continue
        total += n
        n -= 1
    else:
        log.append("else")
    return total


@case([3, 1, 2])
def for_break(log, items):
    for index, item in enumerate(items):
        if item == 1:
            break
        log.append(item)
    else:
        log.append("none")
    return index


@case([[1, 2], [3, 4]])
def nested_loops(log, rows):
    out = []
    for row in rows:
        for x in row:
            if x % 2:
                out.append(x)
            else:
                continue
    return out


@case([1, 2, 3])
def unpack(log, items):
    a, *b = items
    (c, d), e = (a, b), 5
    first, *middle, last = items
    return a, b, c, d, e, middle, last


@case([1])
def unpack_too_few(log, items):
    try:
        a, b = items
    except ValueError as error:
        log.append(str(error))
        raise
    return a


@case([1, 2, 3])
def unpack_too_many(log, items):
    a, b = items
    return a


@case({"a": 1}, [1, 2])
def call_forms(log, named, values):
    one = tell(log, *values, **named)
    two = tell(log, 1, 2, key=3, other=one)
    three = tell(log, *values, 5, key=two, **named)
    four = log.append(three)
    return one, two, three, four


@case("text")
def methods(log, text):
    parts = text.upper().replace("E", "_").split("_")
    log.extend(parts)
    return "-".join(parts).lower()


@case(7)
def formatted(log, x):
    return f"{x} {x!r:>4} {x:03d}" + f"{log}"


@case(7)
def keywords_only(log, x, *, key=3, other=None):
    return x, key, other


@case(1, 2, 3, 4)
def star_arguments(log, x, *rest, key=1, **named):
    rest = [r + x for r in rest]
    named["k"] = key
    return rest, named


@case(0)
def boolean(log, x):
    a = x and log or "b"
    b = not x
    c = x if x else (b or a)
    return a, b, c, x is None, x is not None, x in (0, 1), x not in (0, 1)


@case(4)
def chained(log, x):
    return 1 < x < 5 < x + 2 <= 6


@case([1, 2, 3, 4])
def slices(log, x):
    x[1:2] = [8, 9]
    del x[0]
    x[0] += 5
    return x[::-1], x[:2], x[-1]


@case({"a": 1})
def dictionaries(log, d):
    e = {"x": 1, **d, "y": len(d)}
    e["z"] = {k: v for k, v in e.items()}
    del e["x"]
    return e


@case([1, 2, 3])
def comprehensions(log, items):
    k = 10
    a = [x + k for x in items if x > 1]
    b = {x: y for x in items for y in items if x < y}
    c = {x % 2 for x in items}
    d = sum(x * k for x in items)
    return a, b, c, d, k


@case([1, 2])
def nested_comprehensions(log, items):
    x = "outer"
    out = [[x * y for x in items] for y in items]
    return out, x


@case([1, 2])
def comprehension_that_raises(log, items):
    x = "kept"
    try:
        return [1 // (x - 1) for x in items]
    except ZeroDivisionError:
        log.append(x)
    return x


@case([1, 2])
def comprehension_with_a_closure(log, items):
    makers = [lambda: x for x in items]
    return [make() for make in makers]


@case(3)
def inner_function(log, n):
    count = 0

    def add(k, *, twice=False):
        nonlocal count
        count += 2 * k if twice else k
        return count

    for i in range(n):
        add(i, twice=i == 1)
    log.append(count)
    return count, add(1)


@case(3)
def cell_argument(log, n):
    def read():
        return n

    n += 1
    return read(), (lambda: n + 1)()


@factory(2)
def closure():
    base = 10

    def add(log, x):
        nonlocal base
        log.append(base)
        base += x
        return base * x

    return add


@factory(2)
def closure_with_own_cells():
    base = 10

    def outer(log, x):
        y = x * base

        def inner(z):
            return y + z + base + x

        y += 1
        return inner(3), y

    return outer


@factory(4)
def recursive():
    def factorial(log, n):
        log.append(n)
        return 1 if n < 2 else n * factorial(log, n - 1)

    return factorial


@factory(3)
def zero_argument_super():
    class Base:
        def run(self, x):
            return x + 1

    class Derived(Base):
        def run(self, log, x):
            y = super().run(x)
            log.append(__class__.__name__)
            return super().run(y)

    return lambda log, x, run=Derived.run, self=Derived(): run(self, log, x)


@factory(3)
def super_in_the_frame_itself():
    class Base:
        def run(self):
            return 5

    class Derived(Base, list):
        def run(self, x=2):
            y = super().run()
            self.append(y)
            return super().run() * x, __class__ is Derived

    return Derived.run


CASES.pop()  # its first argument is an instance: registered below, once the class is known


class _LogBase(list):
    def run(self):
        return 5


class _Log(_LogBase):
    def run(self, x=2):
        y = super().run()
        self.append(y)
        return super().run() * x, __class__ is _Log


CASES.append(("super_with_self", lambda: (_Log.run, (4,))))


@case([{"kind": "a", "v": 1}, [1, 2, 3], Point(1, 2), 5, "s", (1,), None])
def matching(log, items):
    out = []
    for item in items:
        match item:
            case {"kind": kind, **rest}:
                out.append((kind, rest))
            case [first, *others]:
                out.append((first, others))
            case Point(x=1, y=y) | Point(y, 1):
                out.append(y)
            case int(n) if n > 3:
                out.append(n)
            case "s" | None:
                out.append("s or none")
            case _:
                out.append("other")
    return out


@case(3)
def unbound(log, x):
    if x > 5:
        y = 1
    log.append(x)
    return y


@case(3)
def deleted(log, x):
    y = x
    del x
    z = y
    del y
    try:
        return x
    except UnboundLocalError as error:
        log.append("gone")
    return z, sorted(locals())


@case(3)
def local_names(log, x):
    y = 1
    before = sorted(locals())
    z = 2
    return before, sorted(locals())


@case(3)
def asserted(log, x):
    assert x > 2, "small"
    assert x > 5, f"{x} is small"


@case(3)
def walrus(log, x):
    while (x := x - 1) > 0:
        log.append(x)
    return [y := 5, y + x]


@case(3)
def imports(log, x):
    import math as m
    from os.path import join, sep

    return m.floor(x + 0.5), join("a", "b").replace(sep, "/")


@case(3)
def global_functions(log, x):
    return math.sqrt(abs(-x * x)), max([x, 1], default=2), isinstance(x, int)


@case(3)
def lambdas(log, x):
    f = lambda a, b=x, *c, d=2: (a, b, c, d)
    return f(1), f(1, 2, 3, d=4)


@case(3)
def conditional_in_call(log, x):
    return tell(log, x if x > 2 else 0, [i for i in range(x)], key=(x, x and 1))


@case(3)
def iterator_on_stack(log, x):
    return [tell(log, a) for a in range(x)], sum(tell(log, b) for b in range(x))


@case(3)
def zipped(log, x):
    out = {}
    for i, (a, b) in zip(range(x), {"p": 1, "q": 2}.items()):
        out[a] = b + i
    return out


@case(3)
def attributes(log, x):
    p = Point(x, x)
    p.x += 1
    p.y, p.x = p.x, p.y
    del p.x
    try:
        return p.x
    except AttributeError:
        return p.y


@case(3)
def starred_building(log, x):
    a = [*range(x), x]
    b = (*a, 1)
    c = {*b, "x"}
    return a, b, len(c)


@case(3)
def attribute_error(log, x):
    return x.nothing


@case(3)
def call_error(log, x):
    return tell(log, x)(1)


@case(3)
def name_error(log, x):
    return x + not_there


@case(3)
def deep_raise(log, x):
    def inner(y):
        fails(log, str(y))

    for i in range(x):
        if i == 1:
            inner(i)


@case(300)
def many_locals(log, x):
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = x
    b = (a0 + a1, a2 + a3, a4 + a5, a6 + a7, a8 + a9)
    for i in range(2):
        b += (i, "long enough to need more than one unit", f"{i}")
    return b, a0, tell(log, a1, a2, k=a3)


CASES += HANDLER_CASES
