"""LLVM IR that decides whether a program runs on all threads or on its caller's alone, by measuring while it runs.

Small programs are faster alone, and so are most on a machine whose cores are busy. Each program begins with a few runs on
all threads; then the other way is tried a few times, and again at intervals that grow as long as nothing changes. Running
alone is only tried where it may pay: when steps are brief, or when most waits of the last one had to park.

Results do not depend on the number of threads, so this affects time only.
"""

from __future__ import annotations

FIRST_TRIAL, MIN_INTERVAL, PARKED_INTERVAL, MAX_INTERVAL = 4, 16, 8, 1024  # runs before the first trial, and between trials
MAX_INTERVAL_IF_LONG = 64  # for long steps that run alone: they lose much when cores become free again
HOPELESS_BITS = 3  # a long step that takes 2 ** this times as long alone ends the trial
RUNS_PER_TRIAL = 3  # the median counts: the first may have to wake workers, and any may be disturbed

# A program's measurements, in words of 8 bytes.
STATE = {"alone": 0, "left": 1, "interval": 2, "ticks_together": 3, "ticks_alone": 4, "lowest": 5, "highest": 6, "total": 7}
STATE_WORDS = 8


def initial_state() -> dict[str, int]:
    """Words that do not begin as 0."""
    return {"left": FIRST_TRIAL, "interval": MIN_INTERVAL}


# `left` counts down to the next trial; while it is negative, a trial is on.
CHOICE_IR = """
define internal void @choose(ptr %pool, ptr %state, ptr %step, ptr %table, i64 %most) nounwind {
entry:
  %left_at = getelementptr i64, ptr %state, i64 $left
  %interval_at = getelementptr i64, ptr %state, i64 $interval
  %together_at = getelementptr i64, ptr %state, i64 $ticks_together
  %alone_at = getelementptr i64, ptr %state, i64 $ticks_alone
  %lowest_at = getelementptr i64, ptr %state, i64 $lowest
  %highest_at = getelementptr i64, ptr %state, i64 $highest
  %total_at = getelementptr i64, ptr %state, i64 $total
  %brief_at = getelementptr i8, ptr %pool, i64 $brief
  %brief = load i64, ptr %brief_at
  %mode = load i64, ptr %state
  %left = load i64, ptr %left_at
  %trial = icmp slt i64 %left, 0
  %flip = zext i1 %trial to i64
  %way = xor i64 %mode, %flip
  %by_itself = icmp ne i64 %way, 0
  %begin = call i64 @tj_ticks()
  br i1 %by_itself, label %alone, label %together
alone:
  call void %step(ptr %table, i64 0, i64 1, ptr @tj_alone)
  br label %measure
together:
  %ran = call i32 @tj_run(ptr %pool, ptr %step, ptr %table, i64 %most)
  %refused = icmp eq i32 %ran, 0
  br i1 %refused, label %leave, label %measure
measure:
  %how = phi i32 [ 1, %alone ], [ %ran, %together ]
  %end = call i64 @tj_ticks()
  %spent = sub i64 %end, %begin
  %ticks_at = select i1 %by_itself, ptr %alone_at, ptr %together_at
  br i1 %trial, label %try, label %usual

try:
  %tries = add i64 %left, 1
  store i64 %tries, ptr %left_at
  %first = icmp eq i64 %left, $first_try
  %low = load i64, ptr %lowest_at
  %high = load i64, ptr %highest_at
  %all = load i64, ptr %total_at
  %lower = icmp slt i64 %spent, %low
  %higher = icmp sgt i64 %spent, %high
  %is_lowest = or i1 %first, %lower
  %is_highest = or i1 %first, %higher
  %lowest = select i1 %is_lowest, i64 %spent, i64 %low
  %highest = select i1 %is_highest, i64 %spent, i64 %high
  %others = select i1 %first, i64 0, i64 %all
  %total = add i64 %others, %spent
  store i64 %lowest, ptr %lowest_at
  store i64 %highest, ptr %highest_at
  store i64 %total, ptr %total_at
  %usual_at = select i1 %by_itself, ptr %together_at, ptr %alone_at
  %usual_ticks = load i64, ptr %usual_at
  %long = icmp sgt i64 %usual_ticks, %brief
  %much = shl i64 %usual_ticks, $hopeless_bits
  %far_more = icmp sgt i64 %spent, %much
  %long_alone = and i1 %long, %by_itself
  %hopeless = and i1 %long_alone, %far_more
  %last = icmp eq i64 %tries, 0
  %over = or i1 %last, %hopeless
  br i1 %over, label %decide, label %leave
decide:
  %without_lowest = sub i64 %total, %lowest
  %second = sub i64 %without_lowest, %highest
  %middle = select i1 %hopeless, i64 %spent, i64 %second
  store i64 %middle, ptr %ticks_at
  %part = lshr i64 %middle, 4
  %with_margin = add i64 %middle, %part
  %better = icmp slt i64 %with_margin, %usual_ticks
  %new_mode = select i1 %better, i64 %way, i64 %mode
  store i64 %new_mode, ptr %state
  %interval = load i64, ptr %interval_at
  %double = shl i64 %interval, 1
  %missing = select i1 %by_itself, i1 false, i1 %long
  %latest = select i1 %missing, i64 $latest_if_long, i64 $latest
  %late = icmp sgt i64 %double, %latest
  %longer = select i1 %late, i64 %latest, i64 %double
  %new_interval = select i1 %better, i64 $soonest, i64 %longer
  store i64 %new_interval, ptr %interval_at
  store i64 %new_interval, ptr %left_at
  ret void

usual:
  %known = load i64, ptr %ticks_at
  %new = icmp eq i64 %known, 0
  %sum = add i64 %known, %spent
  %half = lshr i64 %sum, 1
  %four = shl i64 %known, 2
  %outlier = icmp sgt i64 %spent, %four
  %bounded = select i1 %outlier, i64 %four, i64 %spent
  %excess = sub i64 %bounded, %known
  %quarter = ashr i64 %excess, 2
  %up = add i64 %known, %quarter
  %less = icmp slt i64 %spent, %known
  %mean = select i1 %less, i64 %half, i64 %up
  %ticks = select i1 %new, i64 %spent, i64 %mean
  store i64 %ticks, ptr %ticks_at
  %parked = icmp eq i32 %how, 2
  %fewer = sub i64 %left, 1
  %far = icmp sgt i64 %fewer, $hurried
  %hurry = and i1 %parked, %far
  %remaining = select i1 %hurry, i64 $hurried, i64 %fewer
  store i64 %remaining, ptr %left_at
  %due = icmp sle i64 %remaining, 0
  br i1 %due, label %consider, label %leave
consider:
  %short = icmp slt i64 %ticks, %brief
  %a = or i1 %short, %parked
  %worth = or i1 %a, %by_itself
  %again = load i64, ptr %interval_at
  %next = select i1 %worth, i64 $first_try, i64 %again
  store i64 %next, ptr %left_at
  ret void
leave:
  ret void
}
"""


def choice_values() -> dict[str, object]:
    found: dict[str, object] = {
        **STATE,
        "first_try": -RUNS_PER_TRIAL,
        "soonest": MIN_INTERVAL,
        "hurried": PARKED_INTERVAL,
        "latest": MAX_INTERVAL,
    }
    return found | {"latest_if_long": MAX_INTERVAL_IF_LONG, "hopeless_bits": HOPELESS_BITS}
