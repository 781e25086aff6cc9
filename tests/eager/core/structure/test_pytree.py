"""Trees of containers: leaves in order, containers rebuilt in their class, structures that tell how two calls are nested."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tapejit.eager.core.structure import pytree


class Pair(NamedTuple):
    first: Any
    second: Any


NESTED = {"a": [1, (2, 3)], "b": Pair(4, {"c": []}), "d": "56"}


def test_leaves_are_in_order() -> None:
    assert list(pytree.leaves(NESTED)) == [1, 2, 3, 4, "56"]
    assert list(pytree.leaves(7)) == [7]


def test_containers_come_before_what_is_in_them() -> None:
    assert list(pytree.containers(NESTED)) == [NESTED, NESTED["a"], (2, 3), NESTED["b"], {"c": []}, []]


def test_mapped_leaves_keep_their_containers() -> None:
    mapped = pytree.map_leaves(lambda x: x * 2, NESTED)
    assert mapped == {"a": [2, (4, 6)], "b": Pair(8, {"c": []}), "d": "5656"}
    assert type(mapped["b"]) is Pair and mapped["a"] is not NESTED["a"]


@pytest.mark.parametrize("x", [NESTED["a"], {"a": 1, "b": [2, (3,)]}, (), [], 5])
def test_flatten_and_back(x: Any) -> None:
    found: list[Any] = []
    structure = pytree.flatten(x, found)
    assert pytree.unflatten(structure, iter(found)) == x and found == list(pytree.leaves(x))


def test_structures_tell_lists_tuples_and_keys_apart() -> None:
    structures = [pytree.flatten(x, []) for x in ([1, 2], (1, 2), {"a": 1, "b": 2}, {"b": 1, "a": 2}, [1, [2]])]
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])
    assert pytree.flatten([1, 2], []) == pytree.flatten([3, 4], [])
