"""The walk over an object graph: each object once, cycles end, what is met again is noted."""

from __future__ import annotations

from typing import Any

from tapejit.eager.core.structure.object_graph import walk_objects


def is_plain(x: Any) -> bool:
    return isinstance(x, (int, str))


def test_each_object_is_met_once_and_cycles_end() -> None:
    shared: list[Any] = [1]
    whole: list[Any] = [shared, [shared, 2]]
    shared.append(whole)
    again: set[int] = set()
    met = list(walk_objects([whole], is_plain, lambda x: x, again))
    assert sorted(map(id, met)) == sorted(map(id, [whole, shared, whole[1]]))
    assert again == {id(whole), id(shared)}


def test_objects_made_on_the_way_are_told_apart() -> None:
    """An id would be used again if the walk let go of what it met."""
    met = sum(1 for _ in walk_objects([(50,)], is_plain, lambda x: [(x[0] - 1,)] if x[0] else ()))
    assert met == 51
