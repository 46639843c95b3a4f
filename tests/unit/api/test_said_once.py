"""Cached functions that only log: said as often as in eager, and by one graph."""

from __future__ import annotations

import functools
import logging

import pytest
import torch

import braze


def logger_that_says_once(name):
    logger = logging.getLogger(name)

    @functools.lru_cache(None)
    def say_once(self, *args):
        self.warning(*args)

    return logger, say_once


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("said_before", [False, True])
def test_said_once_by_one_graph(said_before, cleared, caplog):
    logger, say_once = logger_that_says_once("said once")

    def f(x):
        say_once(logger, "mind the %s", "gap")
        return x * 2

    if said_before:
        say_once(logger, "mind the %s", "gap")
    explain = braze.explain(f)
    x = torch.arange(4.0)
    graphs = [explain(x).graph_count for _ in range(3)]
    assert graphs == [1, 0, 0]
    assert len(caplog.records) == 1
    if cleared:
        say_once.cache_clear()
        explain(x)
        assert len(caplog.records) == 2


def test_what_a_cached_function_returned_first_is_returned_again(caplog):
    logger, _ = logger_that_says_once("returned first")
    state = {"n": 1}

    @functools.lru_cache(None)
    def once(self):
        self.warning("asked")
        return None if state["n"] == 1 else state["n"]

    def f(x):
        return once(logger), x + 1

    expected = []
    compiled, x = braze.compile(f), torch.ones(2)
    for n in (1, 2, 1):
        state["n"] = n
        expected.append(compiled(x)[0])
    assert expected == [None, None, None]
    assert len(caplog.records) == 1
    once.cache_clear()
    state["n"] = 2
    assert compiled(x)[0] == 2
    state["n"] = 1
    assert compiled(x)[0] == 2
