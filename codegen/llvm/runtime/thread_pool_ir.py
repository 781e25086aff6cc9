"""LLVM IR of the thread pool: workers, the barrier, handing over a step. `thread_pool.py` is its Python side.

Workers are plain pthreads that wait for steps. A waiter spins for a while and then parks in the kernel. The spin time halves
each time it was in vain, so that a busy machine is not spun on. At barriers it doubles each time it was enough, and is reset
with the next step; between steps, when one comes within the longest spin time.

`futex_ir.py` has the waiting itself.
"""

from __future__ import annotations

import signal
from string import Template

from . import futex_ir

MAX_THREADS = 256
MIN_SPIN_BITS = 4  # at barriers, the spin time is at least the longest one / 2 ** this
STACK_BYTES = 8 << 20  # of a worker: steps have scratch memory there, and system defaults may be much smaller

# Byte offsets in the pool. Words that different threads write are on different cache lines.
POOL_LAYOUT = {
    "generation": 0,  # i32: incremented with each step handed over; workers wait for it
    "stop": 4,  # i32: workers return
    "step": 8,
    "table": 16,
    "threads": 24,  # i64: threads, the caller included; 0 before the first step
    "asked": 32,  # i64: threads asked for when the workers were created
    "taking": 48,  # i64: threads that take part in the step; a step may have scratch for fewer
    "float_mode": 40,  # the caller's, for all threads: bits of results must not depend on the thread
    "arrived": 64,  # i32: at the barrier
    "phase": 128,  # i32: incremented when a barrier opens
    "done": 192,  # i32: workers that finished the step
    "finished": 256,  # i32: incremented when all of them have
    "idle": 320,  # i32: parked between steps
    "held": 324,  # i32: parked at the barrier
    "joining": 328,  # i32: parked at the end of a step
    "parks": 336,  # i64: parks at barriers and ends, in total
    "busy": 384,  # i32: a step is running
    "barriers": 392,  # i64: barriers opened in total, ends of steps included
    "wanted": 448,  # ptr to an i64: threads to use
    "patience": 456,  # i64: ticks to spin for the next step
    "haste": 464,  # i64: ticks to spin at a barrier
    "brief": 472,  # i64: steps of fewer ticks may be faster alone
    "mutex": 512,
    "condition": 576,
    "slots": 1024,
}
SLOT_LAYOUT = {"pool": 0, "index": 8, "budget": 16, "handle": 24, "seen": 32, "between": 40}
SLOT_BYTES = 128
POOL_BYTES = POOL_LAYOUT["slots"] + SLOT_BYTES * MAX_THREADS

BARRIER_IR = """
define internal void @learn(ptr %pool, ptr %slot, i64 %budget, i64 %waited) nounwind {
entry:
  %budget_at = getelementptr i8, ptr %slot, i64 $slot_budget
  %haste_at = getelementptr i8, ptr %pool, i64 $haste
  %haste = load i64, ptr %haste_at
  %spun = icmp eq i64 %waited, 0
  br i1 %spun, label %enough, label %vain
enough:
  %double = shl i64 %budget, 1
  %over = icmp ugt i64 %double, %haste
  %more = select i1 %over, i64 %haste, i64 %double
  store i64 %more, ptr %budget_at
  ret void
vain:
  %half = lshr i64 %budget, 1
  %least = lshr i64 %haste, $least_bits
  %under = icmp ult i64 %half, %least
  %less = select i1 %under, i64 %least, i64 %half
  store i64 %less, ptr %budget_at
  %parks = getelementptr i8, ptr %pool, i64 $parks
  %p = atomicrmw add ptr %parks, i64 1 monotonic
  ret void
}

define void @tj_barrier(ptr %slot) nounwind {
entry:
  %pool = load ptr, ptr %slot
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %leave, label %meet
meet:
  %phase = getelementptr i8, ptr %pool, i64 $phase
  %held = getelementptr i8, ptr %pool, i64 $held
  %arrived = getelementptr i8, ptr %pool, i64 $arrived
  %taking_at = getelementptr i8, ptr %pool, i64 $taking
  %taking = load i32, ptr %taking_at
  %old = load atomic i32, ptr %phase monotonic, align 4
  %before = atomicrmw add ptr %arrived, i32 1 acq_rel
  %now = add i32 %before, 1
  %last = icmp eq i32 %now, %taking
  br i1 %last, label %release, label %hold
release:
  store atomic i32 0, ptr %arrived monotonic, align 4
  %barriers = getelementptr i8, ptr %pool, i64 $barriers
  %b = load i64, ptr %barriers
  %b1 = add i64 %b, 1
  store i64 %b1, ptr %barriers
  call void @open(ptr %pool, ptr %phase, ptr %held)
  ret void
hold:
  %budget_at = getelementptr i8, ptr %slot, i64 $slot_budget
  %budget = load i64, ptr %budget_at
  %waited = call i64 @wait(ptr %pool, ptr %phase, i32 %old, ptr %held, i64 %budget)
  call void @learn(ptr %pool, ptr %slot, i64 %budget, i64 %waited)
  ret void
leave:
  ret void
}
"""

WORKER_IR = """
define internal ptr @worker(ptr %slot) nounwind {
entry:
  %pool = load ptr, ptr %slot
  %generation = getelementptr i8, ptr %pool, i64 $generation
  %stop_at = getelementptr i8, ptr %pool, i64 $stop
  %step_at = getelementptr i8, ptr %pool, i64 $step
  %table_at = getelementptr i8, ptr %pool, i64 $table
  %threads_at = getelementptr i8, ptr %pool, i64 $threads
  %taking_at = getelementptr i8, ptr %pool, i64 $taking
  %float_mode = getelementptr i8, ptr %pool, i64 $float_mode
  %done = getelementptr i8, ptr %pool, i64 $done
  %finished = getelementptr i8, ptr %pool, i64 $finished
  %idle = getelementptr i8, ptr %pool, i64 $idle
  %joining = getelementptr i8, ptr %pool, i64 $joining
  %patience_at = getelementptr i8, ptr %pool, i64 $patience
  %haste_at = getelementptr i8, ptr %pool, i64 $haste
  %index_at = getelementptr i8, ptr %slot, i64 $slot_index
  %budget_at = getelementptr i8, ptr %slot, i64 $slot_budget
  %between_at = getelementptr i8, ptr %slot, i64 $slot_between
  %seen_at = getelementptr i8, ptr %slot, i64 $slot_seen
  %index = load i64, ptr %index_at
  %patience = load i64, ptr %patience_at
  %first = load i32, ptr %seen_at
  br label %idling
idling:
  %seen = phi i32 [ %first, %entry ], [ %next, %ready ], [ %next, %last ]
  %between = load i64, ptr %between_at
  %waited = call i64 @wait(ptr %pool, ptr %generation, i32 %seen, ptr %idle, i64 %between)
  %soon = icmp ult i64 %waited, %patience
  %half = lshr i64 %between, 1
  %then = select i1 %soon, i64 %patience, i64 %half
  store i64 %then, ptr %between_at
  %next = add i32 %seen, 1
  %stop = load i32, ptr %stop_at
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %work
work:
  %haste = load i64, ptr %haste_at
  store i64 %haste, ptr %budget_at
  call void @take_float_mode(ptr %float_mode)
  %step = load ptr, ptr %step_at
  %table = load ptr, ptr %table_at
  %taking = load i64, ptr %taking_at
  %takes = icmp slt i64 %index, %taking
  br i1 %takes, label %part, label %through_with_it
part:
  call void %step(ptr %table, i64 %index, i64 %taking, ptr %slot)
  br label %through_with_it
through_with_it:
  %threads = load i64, ptr %threads_at
  %workers64 = sub i64 %threads, 1
  %workers = trunc i64 %workers64 to i32
  %before = atomicrmw add ptr %done, i32 1 acq_rel
  %through = add i32 %before, 1
  %all = icmp eq i32 %through, %workers
  br i1 %all, label %last, label %ready
last:
  store atomic i32 0, ptr %done monotonic, align 4
  call void @open(ptr %pool, ptr %finished, ptr %joining)
  br label %idling
ready:
  br label %idling
leave:
  ret ptr null
}
"""

# Only the thread that has set `busy` may create and stop workers.
WORKERS_IR = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)

define internal void @end_workers(ptr %pool) nounwind {
entry:
  %threads_at = getelementptr i8, ptr %pool, i64 $threads
  %threads = load i64, ptr %threads_at
  %stop = getelementptr i8, ptr %pool, i64 $stop
  %generation = getelementptr i8, ptr %pool, i64 $generation
  %idle = getelementptr i8, ptr %pool, i64 $idle
  store i32 1, ptr %stop
  call void @open(ptr %pool, ptr %generation, ptr %idle)
  br label %head
head:
  %i = phi i64 [ 1, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %threads
  br i1 %more, label %body, label %leave
body:
  %distance = mul i64 %i, $slot_bytes
  %offset = add i64 %distance, $slots
  %slot = getelementptr i8, ptr %pool, i64 %offset
  %handle_at = getelementptr i8, ptr %slot, i64 $slot_handle
  %handle = load ptr, ptr %handle_at
  %r = call i32 @pthread_join(ptr %handle, ptr null)
  %next = add i64 %i, 1
  br label %head
leave:
  store i32 0, ptr %stop
  store i64 1, ptr %threads_at
  ret void
}

define internal void @make_workers(ptr %pool, i64 %wanted) nounwind {
entry:
  %all = alloca [128 x i8], align 16
  %before = alloca [128 x i8], align 16
  %attributes = alloca [128 x i8], align 16
  %ai = call i32 @pthread_attr_init(ptr %attributes)
  %as = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 $stack)
  %f = call i32 @sigfillset(ptr %all)
$leave_faults
  %m = call i32 @pthread_sigmask(i32 $set_mask, ptr %all, ptr %before)
  %generation = getelementptr i8, ptr %pool, i64 $generation
  %seen = load i32, ptr %generation
  %patience_at = getelementptr i8, ptr %pool, i64 $patience
  %patience = load i64, ptr %patience_at
  %asked_at = getelementptr i8, ptr %pool, i64 $asked
  store i64 %wanted, ptr %asked_at
  %first = getelementptr i8, ptr %pool, i64 $slots
  store ptr %pool, ptr %first
  br label %head
head:
  %i = phi i64 [ 1, %entry ], [ %next, %made ]
  %more = icmp slt i64 %i, %wanted
  br i1 %more, label %body, label %leave
body:
  %distance = mul i64 %i, $slot_bytes
  %offset = add i64 %distance, $slots
  %slot = getelementptr i8, ptr %pool, i64 %offset
  %index_at = getelementptr i8, ptr %slot, i64 $slot_index
  %handle_at = getelementptr i8, ptr %slot, i64 $slot_handle
  %seen_at = getelementptr i8, ptr %slot, i64 $slot_seen
  %between_at = getelementptr i8, ptr %slot, i64 $slot_between
  store ptr %pool, ptr %slot
  store i64 %i, ptr %index_at
  store i32 %seen, ptr %seen_at
  store i64 %patience, ptr %between_at
  %failed = call i32 @pthread_create(ptr %handle_at, ptr %attributes, ptr @worker, ptr %slot)
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %made, label %leave
made:
  %next = add i64 %i, 1
  br label %head
leave:
  %threads_at = getelementptr i8, ptr %pool, i64 $threads
  store i64 %i, ptr %threads_at
  %u = call i32 @pthread_sigmask(i32 $set_mask, ptr %before, ptr null)
  %ad = call i32 @pthread_attr_destroy(ptr %attributes)
  ret void
}

define void @tj_prepare(ptr %pool) nounwind {
entry:
  call void @make_parking(ptr %pool)
  ret void
}

define i32 @tj_stop(ptr %pool) nounwind {
entry:
  %busy = getelementptr i8, ptr %pool, i64 $busy
  %old = cmpxchg ptr %busy, i32 0, i32 1 acq_rel monotonic
  %free = extractvalue { i32, i1 } %old, 1
  br i1 %free, label %end, label %leave
end:
  call void @end_workers(ptr %pool)
  ret i32 1
leave:
  ret i32 0
}
"""

# Runs a step on all threads, or on the `most` that it has scratch for; alone if the pool is busy.
# Returns 0: alone; 1: together; 2: together, and most waits parked.
RUN_IR = """
@tj_alone = constant [16 x i64] zeroinitializer, align 128

define i32 @tj_run(ptr %pool, ptr %step, ptr %table, i64 %most) nounwind {
entry:
  %wanted_at = getelementptr i8, ptr %pool, i64 $wanted
  %wanted_word = load ptr, ptr %wanted_at
  %any = load i64, ptr %wanted_word
  %much = icmp sgt i64 %any, $most_threads
  %wanted = select i1 %much, i64 $most_threads, i64 %any
  %several = icmp sgt i64 %wanted, 1
  br i1 %several, label %take, label %alone
take:
  %busy = getelementptr i8, ptr %pool, i64 $busy
  %old = cmpxchg ptr %busy, i32 0, i32 1 acq_rel monotonic
  %free = extractvalue { i32, i1 } %old, 1
  br i1 %free, label %check, label %alone
alone:
  call void %step(ptr %table, i64 0, i64 1, ptr @tj_alone)
  ret i32 0
check:
  %asked_at = getelementptr i8, ptr %pool, i64 $asked
  %asked = load i64, ptr %asked_at
  %as_asked = icmp eq i64 %asked, %wanted
  br i1 %as_asked, label %count, label %change
change:
  call void @end_workers(ptr %pool)
  call void @make_workers(ptr %pool, i64 %wanted)
  br label %count
count:
  %threads_at = getelementptr i8, ptr %pool, i64 $threads
  %threads = load i64, ptr %threads_at
  %crowd = icmp sgt i64 %threads, %most
  %taking = select i1 %crowd, i64 %most, i64 %threads
  %some = icmp sgt i64 %taking, 1
  br i1 %some, label %together, label %nobody
nobody:
  store atomic i32 0, ptr %busy release, align 4
  br label %alone
together:
  %slot = getelementptr i8, ptr %pool, i64 $slots
  %budget_at = getelementptr i8, ptr %slot, i64 $slot_budget
  %haste_at = getelementptr i8, ptr %pool, i64 $haste
  %step_at = getelementptr i8, ptr %pool, i64 $step
  %table_at = getelementptr i8, ptr %pool, i64 $table
  %parks_at = getelementptr i8, ptr %pool, i64 $parks
  %barriers_at = getelementptr i8, ptr %pool, i64 $barriers
  %finished = getelementptr i8, ptr %pool, i64 $finished
  %generation = getelementptr i8, ptr %pool, i64 $generation
  %idle = getelementptr i8, ptr %pool, i64 $idle
  %joining = getelementptr i8, ptr %pool, i64 $joining
  %haste = load i64, ptr %haste_at
  store i64 %haste, ptr %budget_at
  store ptr %step, ptr %step_at
  store ptr %table, ptr %table_at
  %taking_at = getelementptr i8, ptr %pool, i64 $taking
  store i64 %taking, ptr %taking_at
  %float_mode = getelementptr i8, ptr %pool, i64 $float_mode
  call void @keep_float_mode(ptr %float_mode)
  %parks = load i64, ptr %parks_at
  %barriers = load i64, ptr %barriers_at
  %unfinished = load i32, ptr %finished
  call void @open(ptr %pool, ptr %generation, ptr %idle)
  call void %step(ptr %table, i64 0, i64 %taking, ptr %slot)
  %budget = load i64, ptr %budget_at
  %waited = call i64 @wait(ptr %pool, ptr %finished, i32 %unfinished, ptr %joining, i64 %budget)
  call void @learn(ptr %pool, ptr %slot, i64 %budget, i64 %waited)
  %parks_now = load i64, ptr %parks_at
  %barriers_then = load i64, ptr %barriers_at
  %barriers_now = add i64 %barriers_then, 1
  store i64 %barriers_now, ptr %barriers_at
  store atomic i32 0, ptr %busy release, align 4
  %new_parks = sub i64 %parks_now, %parks
  %new_barriers = sub i64 %barriers_now, %barriers
  %twice = shl i64 %new_parks, 1
  %others = sub i64 %taking, 1
  %waits = mul i64 %new_barriers, %others
  %mostly = icmp ugt i64 %twice, %waits
  %how = select i1 %mostly, i32 2, i32 1
  ret i32 %how
}
"""

# Without pthreads or a cheap clock: every step runs on its caller's thread.
SINGLE_THREAD_IR = """
@tj_alone = constant [16 x i64] zeroinitializer, align 128

define i64 @tj_ticks() nounwind {
  ret i64 0
}

define void @tj_barrier(ptr %slot) nounwind {
  ret void
}

define i32 @tj_run(ptr %pool, ptr %step, ptr %table, i64 %most) nounwind {
  call void %step(ptr %table, i64 0, i64 1, ptr @tj_alone)
  ret i32 0
}

define void @tj_prepare(ptr %pool) nounwind {
  ret void
}

define i32 @tj_stop(ptr %pool) nounwind {
  ret i32 1
}
"""


def pool_ir(architecture: str, parking: str) -> str:
    """The whole module. `parking` is "futex", "condition" or "none"; with "none" there are no workers."""
    if parking == "none" or architecture not in futex_ir.CPU_IR:
        return SINGLE_THREAD_IR
    parts = futex_ir.wait_ir(architecture, parking == "futex") + BARRIER_IR + WORKER_IR + WORKERS_IR + RUN_IR
    values: dict[str, object] = {**POOL_LAYOUT, **{f"slot_{name}": at for name, at in SLOT_LAYOUT.items()}}
    values |= {"slot_bytes": SLOT_BYTES, "most_threads": MAX_THREADS, "least_bits": MIN_SPIN_BITS, "stack": STACK_BYTES}
    values |= futex_ir.futex_values(architecture)
    values |= {"set_mask": int(signal.SIG_SETMASK), "leave_faults": _leave_faults()}
    return Template(parts).substitute(values)


def _leave_faults() -> str:
    """IR that leaves fault signals unmasked. Workers block all others, so that Python's handlers run in its own threads;
    faults still end the process with a report."""
    faults = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
    return "\n".join(f"  %d{int(s)} = call i32 @sigdelset(ptr %all, i32 {int(s)})" for s in faults)
