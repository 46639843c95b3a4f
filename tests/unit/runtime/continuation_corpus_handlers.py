# ruff: noqa: B012, B018, F821, RET503, RET504, SIM117
# mypy: ignore-errors
"""The part of the corpus that handles exceptions: try, with, and both in loops."""

import copy
from contextlib import contextmanager

HANDLER_CASES = []


def case(*arguments):
    def register(function):
        HANDLER_CASES.append((function.__name__, lambda: (function, copy.deepcopy(arguments))))
        return function

    return register


class Manager:
    def __init__(self, log, name, swallow=False, fail_enter=False, fail_exit=False):
        self.log, self.name, self.swallow = log, name, swallow
        self.fail_enter, self.fail_exit = fail_enter, fail_exit

    def __enter__(self):
        self.log.append(("enter", self.name))
        if self.fail_enter:
            raise OSError("enter")
        return self.name

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", self.name, kind, str(value)))
        if self.fail_exit:
            raise OSError("exit")
        return self.swallow


def fails(log, text="boom"):
    log.append("fails")
    raise ValueError(text)


@case(3)
def try_except(log, x):
    try:
        log.append("try")
        fails(log)
    except ValueError as error:
        log.append(str(error))
        x += 1
    else:
        x += 10
    finally:
        log.append("finally")
    return x


@case(3)
def try_else(log, x):
    try:
        log.append("try")
    except ValueError:
        x = 0
    else:
        x += 10
    finally:
        x += 100
    return x


@case(0)
def try_uncaught(log, x):
    try:
        return 1 // x
    except KeyError:
        log.append("key")
    finally:
        log.append("finally")


@case([1, 0, 2])
def try_in_a_loop(log, items):
    out = []
    for item in items:
        try:
            out.append(6 // item)
        except ZeroDivisionError:
            out.append(None)
            continue
        finally:
            log.append(item)
    return out


@case([1, 0, 2])
def break_in_try(log, items):
    for item in items:
        try:
            if not item:
                break
            log.append(item)
        finally:
            log.append("f")
    return item


@case(3)
def return_in_try(log, x):
    for i in range(x):
        try:
            if i == 1:
                return i
        finally:
            log.append(i)


@case(3)
def return_in_except(log, x):
    try:
        fails(log)
    except ValueError as error:
        return str(error), x
    finally:
        log.append("finally")


@case(3)
def return_overridden(log, x):
    try:
        fails(log)
    finally:
        return x


@case(3)
def raise_in_except(log, x):
    try:
        fails(log)
    except ValueError as error:
        raise KeyError(x) from error


@case(3)
def bare_raise(log, x):
    try:
        fails(log)
    except ValueError:
        log.append("again")
        raise


@case(3)
def bare_raise_of_the_outer(log, x):
    try:
        fails(log, "outer")
    except ValueError as outer:
        try:
            fails(log, "inner")
        except ValueError as inner:
            log.append(str(inner))
        log.append(str(outer))
        raise


@case(3)
def nested_try(log, x):
    try:
        try:
            fails(log, "a")
        except KeyError:
            log.append("wrong")
        finally:
            log.append("inner finally")
            try:
                fails(log, "b")
            except ValueError as error:
                log.append(str(error))
    except (TypeError, ValueError) as error:
        log.append(str(error))
    return x


@case(3)
def nested_finally(log, x):
    try:
        try:
            try:
                x = [][x]
            finally:
                log.append(1)
        finally:
            log.append(2)
    except IndexError:
        log.append(3)
    finally:
        log.append(4)
    return x


@case(3)
def handler_with_name_deleted(log, x):
    try:
        fails(log)
    except ValueError as error:
        saved = error
    try:
        error
    except UnboundLocalError:
        log.append("unbound")
    return str(saved)


@case(3)
def with_one(log, x):
    with Manager(log, "a") as name:
        x += len(name)
    return x


@case(3)
def with_swallow(log, x):
    with Manager(log, "a", swallow=True):
        fails(log)
        x = 0
    return x


@case(3)
def with_raises(log, x):
    with Manager(log, "a"):
        fails(log)


@case(3)
def with_two(log, x):
    with Manager(log, "a") as a, Manager(log, "b", swallow=True) as b:
        log.append(a + b)
        fails(log)
    return x


@case(3)
def with_nested_and_return(log, x):
    for i in range(x):
        with Manager(log, i):
            with Manager(log, -i):
                if i == 1:
                    return i
                log.append("body")


@case(3)
def with_failing_enter(log, x):
    try:
        with Manager(log, "a"):
            with Manager(log, "b", fail_enter=True):
                log.append("never")
    except OSError as error:
        log.append(str(error))
    return x


@case(3)
def with_failing_exit(log, x):
    try:
        with Manager(log, "a"), Manager(log, "b", fail_exit=True):
            fails(log)
    except OSError as error:
        log.append(str(error))
    return x


@case(3)
def with_in_try_in_with(log, x):
    with Manager(log, "outer", swallow=True):
        try:
            with Manager(log, "inner"):
                try:
                    fails(log)
                finally:
                    log.append("f")
        except KeyError:
            log.append("wrong")
        finally:
            log.append("g")
    return x


@case([1, 2, 3])
def with_continue(log, items):
    for item in items:
        with Manager(log, item):
            if item == 2:
                continue
            log.append("not 2")
    return item


@case(3)
def contextmanager_function(log, x):
    @contextmanager
    def managed(value):
        log.append("in")
        try:
            yield value
        finally:
            log.append("out")

    with managed(x) as y:
        y += 1
    return y
