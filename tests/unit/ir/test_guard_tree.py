"""Guard trees as data: order, sharing, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from braze.errors import InternalError
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.guard_tree import (
    COSTS,
    GuardTree,
    build_guard_tree,
    verify_guard_tree,
)
from braze.ir.captured.source import AttributeSource, DictValueSource, ItemSource, LocalSource

X, SELF = LocalSource("x"), LocalSource("self")
LAYER = ItemSource(AttributeSource(SELF, "layers"), 0)
K = GuardKind


def tree_of(*guards: Guard, inputs: Any = ()) -> GuardTree:
    tree = build_guard_tree(guards, inputs)
    verify_guard_tree(tree)
    return tree


def test_every_kind_has_a_cost() -> None:
    assert set(COSTS) == set(GuardKind)


def test_places_are_shared_and_operands_come_first() -> None:
    tree = tree_of(
        Guard(AttributeSource(LAYER, "bias"), K.ID_MATCH, None),
        Guard(
            AttributeSource(ItemSource(AttributeSource(SELF, "layers"), 0), "weight"), K.LENGTH, 1
        ),
        Guard(SELF, K.TYPE_MATCH, int),
        inputs=[AttributeSource(LAYER, "bias"), AttributeSource(X, "late")],
    )
    names = [str(node.source) for node in tree.nodes]
    assert names == [
        "None", "L['self']", "L['self'].layers", "L['self'].layers[0]", "L['self'].layers[0].bias",
        "L['self'].layers[0].weight", "L['x']", "L['x'].late",
    ]  # fmt: skip
    assert tree.guarded == 6 and tree.inputs == (4, 7)
    assert [len(node.checks) for node in tree.nodes] == [0, 1, 0, 0, 1, 1, 0, 0]


def test_guards_of_a_place_are_asked_once_and_cheapest_first() -> None:
    guard = Guard(X, K.TYPE_MATCH, dict)
    again = Guard(LocalSource("x"), K.TYPE_MATCH, dict)
    tree = tree_of(Guard(X, K.DICT_KEYS, ("a",)), guard, again, Guard(X, K.LENGTH, 1))
    assert [g.kind for g in tree.guards()] == [K.TYPE_MATCH, K.LENGTH, K.DICT_KEYS]


def test_relations_come_last_and_may_read_places_without_guards() -> None:
    value = DictValueSource(X, 1)
    tree = tree_of(Guard(value, K.SAME_OBJECT, SELF), Guard(X, K.TYPE_MATCH, dict))
    assert [str(node.source) for node in tree.nodes[1:]] == [
        "L['x']",
        "list(L['x'])[1]",
        "L['x'][list(L['x'])[1]]",
        "L['self']",
    ]
    assert tree.nodes[3].operands == (1, 2)
    assert tree.relations[0].nodes == (3, 4)


def _broken_trees() -> dict[str, GuardTree]:
    tree = tree_of(
        Guard(LAYER, K.TYPE_MATCH, int),
        Guard(LAYER, K.LENGTH, 1),
        Guard(X, K.DIFFERENT_OBJECT, LAYER),
        inputs=[X],
    )
    process, outer, middle, inner, other = tree.nodes
    moved = replace(inner, operands=(1,))
    costly = replace(inner, checks=tuple(reversed(inner.checks)))
    relation = tree.relations[0]
    return {
        "the first node is the process": replace(tree, nodes=tree.nodes[1:]),
        "the process is one node": replace(tree, nodes=(*tree.nodes, process)),
        "is two nodes": replace(tree, nodes=(*tree.nodes, other)),
        "reads nodes": replace(tree, nodes=(process, outer, middle, moved, other)),
        "stands at": replace(
            tree, nodes=(process, outer, middle, inner, replace(other, checks=inner.checks))
        ),
        "not ordered by cost": replace(tree, nodes=(process, outer, middle, costly, other)),
        "is read behind the guards": replace(tree, guarded=3),
        "compares other nodes": replace(tree, relations=(replace(relation, nodes=(3, 4)),)),
        "compares what is read behind it": replace(tree, guarded=4),
        "is asked of one place": replace(
            tree, relations=(replace(relation, guard=inner.checks[0]),)
        ),
        "compares several places": replace(
            tree,
            nodes=(process, outer, middle, inner, replace(other, checks=(relation.guard,))),
        ),
        "an input is no node": replace(tree, inputs=(9,)),
    }


@pytest.mark.parametrize("rule, tree", _broken_trees().items(), ids=lambda part: str(part)[:20])
def test_the_verifier_names_the_broken_rule(rule: str, tree: GuardTree) -> None:
    with pytest.raises(InternalError, match=rule):
        verify_guard_tree(tree)
