"""Queries over the entries of a Trace: the ops, slots, memory and version counters they use."""

from __future__ import annotations

from .trace import Backward, Call, Trace


def calls_between(trace: Trace, start: int, stop: int) -> list[Call]:
    """Return the ops of some entries, including those inside backward passes."""
    found: list[Call] = []
    for entry in trace.entries[start:stop]:
        if isinstance(entry, Call):
            found.append(entry)
        elif isinstance(entry, Backward):
            found.extend(entry.calls)
    return found


def used_slots(trace: Trace, start: int) -> set[int]:
    """Return the slots that entries from `start` on read or write."""
    return {trace.values[n].slot for call in calls_between(trace, start, len(trace.entries)) for n in values_used(call)}


def values_used(call: Call) -> list[int]:
    return [n for n in (*call.inputs, call.out) if isinstance(n, int)]


def written_values(trace: Trace, start: int, stop: int) -> list[int]:
    """Return the values that ops write into, once per op."""
    found: list[int] = []
    for call in calls_between(trace, start, stop):
        inputs = [call.inputs[i] for i in call.op.mutates if isinstance(call.inputs[i], int)] if call.op.mutates else []
        found += inputs if call.out is None else [call.out]
    return found


def written_roots(trace: Trace, start: int, stop: int) -> set[int]:
    """Return the root slots of the memory that is written."""
    return {trace.roots[trace.values[n].slot] for n in written_values(trace, start, stop)}


def version_increments(trace: Trace, start: int, stop: int) -> list[tuple[int, int, int | None]]:
    """Return version counter increments: the root of the memory, the amount, and the value that owns the counter if it is from
    outside. A write through `x.data`, or through a tensor whose `.data` was set to it, increments another counter than a write
    through x."""
    counts: dict[tuple[int, int | None], int] = {}
    for n in written_values(trace, start, stop):
        root, base = trace.roots[trace.values[n].slot], trace.base(trace.values[n])
        key = root, base if trace.values[base].own_version_counter else trace.owners.get(root)
        counts[key] = counts.get(key, 0) + 1
    return [(root, count, owner) for (root, owner), count in counts.items()]
