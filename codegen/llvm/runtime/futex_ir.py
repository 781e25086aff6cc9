"""LLVM IR that waits for a word to change: spin for a while, then park in the kernel. Part of `thread_pool_ir.py`'s module.

No wake-up is lost: a waiter counts itself as a sleeper, then reads the word again; a waker changes the word, then reads the
number of sleepers. Both sequentially consistent, so one of them sees the other.

Parking is a futex on Linux; elsewhere one mutex and one condition variable for the whole pool. Spinning is timed by a cheap
CPU counter, and always bounded.
"""

from __future__ import annotations

FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}  # system call
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # process-private

PARKING_BY_FUTEX = """
declare i64 @syscall(i64, ...)

define internal void @park(ptr %pool, ptr %word, i32 %old) nounwind {
entry:
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 $wait, i32 %old, ptr null, ptr null, i32 0)
  ret void
}

define internal void @wake(ptr %pool, ptr %word) nounwind {
entry:
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 $wake, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}

define internal void @make_parking(ptr %pool) nounwind {
entry:
  ret void
}
"""

PARKING_BY_CONDITION = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @park(ptr %pool, ptr %word, i32 %old) nounwind {
entry:
  %mutex = getelementptr i8, ptr %pool, i64 $mutex
  %condition = getelementptr i8, ptr %pool, i64 $condition
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %look
look:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %old
  br i1 %same, label %sleep, label %leave
sleep:
  %w = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %look
leave:
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

define internal void @wake(ptr %pool, ptr %word) nounwind {
entry:
  %mutex = getelementptr i8, ptr %pool, i64 $mutex
  %condition = getelementptr i8, ptr %pool, i64 $condition
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  ret void
}

define internal void @make_parking(ptr %pool) nounwind {
entry:
  %mutex = getelementptr i8, ptr %pool, i64 $mutex
  %condition = getelementptr i8, ptr %pool, i64 $condition
  %m = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}
"""

# Per CPU: the counter, a pause while spinning, and the floating-point mode (rounding, denormals).
CPU_IR = {
    "x86_64": """
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal void @keep_float_mode(ptr %to) nounwind {
  call void @llvm.x86.sse.stmxcsr(ptr %to)
  ret void
}

define internal void @take_float_mode(ptr %from) nounwind {
  call void @llvm.x86.sse.ldmxcsr(ptr %from)
  ret void
}

define i64 @tj_ticks() nounwind {
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}

define internal void @relax() nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
""",
    "aarch64": """
!0 = !{!"cntvct_el0"}
declare i64 @llvm.read_volatile_register.i64(metadata)
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal void @keep_float_mode(ptr %to) nounwind {
  %mode = call i64 @llvm.aarch64.get.fpcr()
  store i64 %mode, ptr %to
  ret void
}

define internal void @take_float_mode(ptr %from) nounwind {
  %mode = load i64, ptr %from
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}

define i64 @tj_ticks() nounwind {
  %t = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %t
}

define internal void @relax() nounwind {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}
""",
}

# wait returns when a word differs from `old`: 0, or, if it had to park, the ticks that it took.
WAIT_IR = """
define internal i64 @wait(ptr %pool, ptr %word, i32 %old, ptr %sleepers, i64 %budget) nounwind {
entry:
  %begin = call i64 @tj_ticks()
  br label %spin
spin:
  %seen = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %seen, %old
  br i1 %same, label %again, label %at_once
again:
  call void @relax()
  %now = call i64 @tj_ticks()
  %spent = sub i64 %now, %begin
  %patient = icmp ult i64 %spent, %budget
  br i1 %patient, label %spin, label %tired
at_once:
  ret i64 0
tired:
  %a = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %look
look:
  %found = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %found, %old
  br i1 %still, label %sleep, label %awake
sleep:
  call void @park(ptr %pool, ptr %word, i32 %old)
  br label %look
awake:
  %s = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %end = call i64 @tj_ticks()
  %waited = sub i64 %end, %begin
  ret i64 %waited
}

define internal void @open(ptr %pool, ptr %word, ptr %sleepers) nounwind {
entry:
  %a = atomicrmw add ptr %word, i32 1 seq_cst
  %n = load atomic i32, ptr %sleepers seq_cst, align 4
  %some = icmp ne i32 %n, 0
  br i1 %some, label %rouse, label %leave
rouse:
  call void @wake(ptr %pool, ptr %word)
  ret void
leave:
  ret void
}
"""


def wait_ir(architecture: str, futex: bool) -> str:
    """Functions that wait and wake; `$names` in the text are offsets into the pool."""
    return CPU_IR[architecture] + (PARKING_BY_FUTEX if futex else PARKING_BY_CONDITION) + WAIT_IR


def futex_values(architecture: str) -> dict[str, object]:
    return {"futex": FUTEX_NUMBER[architecture], "wait": FUTEX_WAIT, "wake": FUTEX_WAKE}
