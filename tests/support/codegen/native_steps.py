"""Steps for the tests of the native runtime, written by hand as LLVM text, and what they have to compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from tapejit.codegen.llvm.runtime import jit
from tapejit.codegen.llvm.runtime import thread_pool as threads

ROUNDS = 50

# The table of `relay`: two rows of cells, how many cells, how many rounds. In each round a cell becomes three times its left
# neighbour plus its own index, from one row to the other: a thread that is ahead or behind by a round spoils the result.
TEXT = """
declare void @tj_barrier(ptr)

define void @relay(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %from_at = getelementptr ptr, ptr %table, i64 0
  %to_at = getelementptr ptr, ptr %table, i64 1
  %cells_at = getelementptr i64, ptr %table, i64 2
  %rounds_at = getelementptr i64, ptr %table, i64 3
  %one = load ptr, ptr %from_at
  %two = load ptr, ptr %to_at
  %cells = load i64, ptr %cells_at
  %rounds = load i64, ptr %rounds_at
  br label %round
round:
  %r = phi i64 [ 0, %entry ], [ %r1, %met ]
  %from = phi ptr [ %one, %entry ], [ %to, %met ]
  %to = phi ptr [ %two, %entry ], [ %from, %met ]
  %more = icmp slt i64 %r, %rounds
  br i1 %more, label %head, label %leave
head:
  %i = phi i64 [ %thread, %round ], [ %i1, %body ]
  %inside = icmp slt i64 %i, %cells
  br i1 %inside, label %body, label %met
body:
  %before = add i64 %i, %cells
  %less = sub i64 %before, 1
  %left = srem i64 %less, %cells
  %left_at = getelementptr i64, ptr %from, i64 %left
  %value = load i64, ptr %left_at
  %triple = mul i64 %value, 3
  %new = add i64 %triple, %i
  %cell = getelementptr i64, ptr %to, i64 %i
  store i64 %new, ptr %cell
  %i1 = add i64 %i, %threads
  br label %head
met:
  call void @tj_barrier(ptr %pool)
  %r1 = add i64 %r, 1
  br label %round
leave:
  ret void
}

; the table: an array that gets its number of threads by thread, and a flag that the step waits for
define void @hold(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %seen = load ptr, ptr %table
  %seen_at = getelementptr i64, ptr %seen, i64 %thread
  store atomic i64 %threads, ptr %seen_at release, align 8
  %flag_at = getelementptr ptr, ptr %table, i64 1
  %flag = load ptr, ptr %flag_at
  br label %wait
wait:
  %value = load atomic i64, ptr %flag acquire, align 8
  %set = icmp ne i64 %value, 0
  br i1 %set, label %leave, label %wait
leave:
  ret void
}

; the table: an array, a double, an i64, another double, a constant; all of them go into the array
define void @report(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %to = load ptr, ptr %table
  %a = getelementptr i64, ptr %table, i64 1
  %words = load <4 x i64>, ptr %a, align 8
  store <4 x i64> %words, ptr %to, align 8
  ret void
}

; writes to four megabytes of its own stack; the table: an array that gets a sign of it
define void @spread(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %room = alloca [4194304 x i8], align 64
  %seen = load ptr, ptr %table
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, 4194304
  br i1 %more, label %body, label %leave
body:
  %back = sub i64 4194303, %i
  %at = getelementptr i8, ptr %room, i64 %back
  store volatile i8 1, ptr %at
  %i1 = add i64 %i, 64
  br label %head
leave:
  %seen_at = getelementptr i64, ptr %seen, i64 %thread
  store i64 1, ptr %seen_at
  ret void
}

; the table: an array of doubles; each thread halves the smallest normal number into its place
define void @halve(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %to = load ptr, ptr %table
  %at = getelementptr double, ptr %to, i64 %thread
  %x = load volatile double, ptr %at
  %y = fmul double %x, 0.5
  store double %y, ptr %at
  ret void
}

declare i64 @tj_ticks()

; the table: ticks to waste if alone, ticks to waste if not; thread 0 wastes them
define void @waste(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %alone = icmp eq i64 %threads, 1
  %which = select i1 %alone, i64 0, i64 1
  %at = getelementptr i64, ptr %table, i64 %which
  %ticks = load i64, ptr %at
  %first = icmp eq i64 %thread, 0
  %begin = call i64 @tj_ticks()
  br i1 %first, label %spin, label %leave
spin:
  %now = call i64 @tj_ticks()
  %spent = sub i64 %now, %begin
  %more = icmp slt i64 %spent, %ticks
  br i1 %more, label %spin, label %leave
leave:
  ret void
}
"""
STEPS = ("relay", "hold", "report", "spread", "halve", "waste")


def steps(pool: threads.ThreadPool | None = None) -> jit.Library:
    """The steps above, linked with a pool's barrier."""
    return jit.link([jit.compile_text(TEXT)], (pool or threads.process_pool()).imports(), STEPS)


def relay(first: Any, rounds: int) -> Any:
    """Return what `relay` leaves in the row that it wrote last."""
    row = first.copy()
    index = np.arange(len(row))
    for _ in range(rounds):
        row = 3 * np.roll(row, 1) + index
    return row
