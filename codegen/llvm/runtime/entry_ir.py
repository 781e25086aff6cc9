"""LLVM IR of the built-in function that binds and runs programs. `entry.py` is its Python side and documents its contract.

It reads lists, floats and arrays at CPython's field offsets, and calls CPython for anything else. Scalars come first, as
converting one may run Python code; from reading the arrays to the end of the step no Python runs in this thread.
"""

from __future__ import annotations

from string import Template

from . import thread_choice_ir
from .thread_pool_ir import POOL_LAYOUT

OBJECT_HEADER = object.__basicsize__  # bytes before an object's own fields; the type pointer is last
NUMBER_KINDS = {"double": 0, "i64": 1, "bits": 2}
PARALLEL_FLAG, RELEASES_GIL_FLAG = 1, 2

# The descriptor, in words. After it: the slots, pairs of place and kind of the scalars, the table.
# `lock` is the address of the word that locks its memory: its own `in_use`, or the shared arena's.
DESCRIPTOR = {
    "in_use": 0,
    "step": 1,
    "flags": 2,
    "slots": 3,
    "numbers": 4,
    "length": 5,
    "table": 6,
    "most": 7,
    "lock": 8,
    "state": 9,
}
DESCRIPTOR_WORDS = DESCRIPTOR["state"] + thread_choice_ir.STATE_WORDS

MESSAGES = {
    "not_lists": "[compile] a program takes a list of arrays and a list of scalars",
    "too_short": "[compile] the lists passed to a program are too short",
    "not_array": "[compile] a slot that a program reads holds something other than an array",
}

PYTHON_IMPORTS = (
    "PyFloat_AsDouble",
    "PyLong_AsLongLong",
    "PyLong_AsUnsignedLongLongMask",
    "PyType_IsSubtype",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyBool_FromLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)

ENTRY_IR = """
declare double @PyFloat_AsDouble(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @tj_run(ptr, ptr, ptr, i64)
declare i64 @tj_ticks()
@tj_alone = external constant i8
@list_type = external constant i8
@float_type = external constant i8
@array_type = external constant i8
@type_error = external constant i8
@pool = external global i8
@tj_epoch = global i64 1
$messages

define ptr @tj_program(ptr %self, ptr %args, i64 %count) nounwind {
entry:
  %self_at = getelementptr i8, ptr %self, i64 $header
  %words = load ptr, ptr %self_at
  %two = icmp eq i64 %count, 2
  br i1 %two, label %types, label %bad_lists
types:
  %second = getelementptr ptr, ptr %args, i64 1
  %arrays = load ptr, ptr %args
  %scalars = load ptr, ptr %second
  %arrays_type_at = getelementptr i8, ptr %arrays, i64 $type
  %scalars_type_at = getelementptr i8, ptr %scalars, i64 $type
  %arrays_type = load ptr, ptr %arrays_type_at
  %scalars_type = load ptr, ptr %scalars_type_at
  %list1 = icmp eq ptr %arrays_type, @list_type
  %list2 = icmp eq ptr %scalars_type, @list_type
  %lists = and i1 %list1, %list2
  br i1 %lists, label %take, label %bad_lists
take:
  %lock_at = getelementptr i64, ptr %words, i64 $lock
  %lock = load ptr, ptr %lock_at
  %mine = call i32 @tj_take(ptr %lock)
  %free = icmp ne i32 %mine, 0
  br i1 %free, label %begin, label %busy
busy:
  %no = call ptr @PyBool_FromLong(i64 0)
  ret ptr %no

begin:
  %slots_at = getelementptr i64, ptr %words, i64 $slots
  %numbers_at = getelementptr i64, ptr %words, i64 $numbers
  %length_at = getelementptr i64, ptr %words, i64 $length
  %table_at = getelementptr i64, ptr %words, i64 $table
  %slots = load i64, ptr %slots_at
  %numbers = load i64, ptr %numbers_at
  %length = load i64, ptr %length_at
  %table_index = load i64, ptr %table_at
  %slot_list = getelementptr i64, ptr %words, i64 $head_words
  %number_list = getelementptr i64, ptr %slot_list, i64 %slots
  %table = getelementptr i64, ptr %words, i64 %table_index
  %number_table = getelementptr i64, ptr %table, i64 %slots
  %scalars_size_at = getelementptr i8, ptr %scalars, i64 $header
  %scalars_items_at = getelementptr i8, ptr %scalars, i64 $items
  %arrays_size_at = getelementptr i8, ptr %arrays, i64 $header
  %arrays_items_at = getelementptr i8, ptr %arrays, i64 $items
  br label %number_head

number_head:
  %n = phi i64 [ 0, %begin ], [ %n1, %number_next ]
  %more_numbers = icmp slt i64 %n, %numbers
  br i1 %more_numbers, label %number, label %arrays_begin
number:
  %pair = shl i64 %n, 1
  %place_at = getelementptr i64, ptr %number_list, i64 %pair
  %kind_at = getelementptr i64, ptr %place_at, i64 1
  %place = load i64, ptr %place_at
  %kind = load i64, ptr %kind_at
  %scalars_size = load i64, ptr %scalars_size_at
  %inside = icmp slt i64 %place, %scalars_size
  br i1 %inside, label %fetch, label %bad_length
fetch:
  %scalars_items = load ptr, ptr %scalars_items_at
  %item_at = getelementptr ptr, ptr %scalars_items, i64 %place
  %item = load ptr, ptr %item_at
  %word_at = getelementptr i64, ptr %number_table, i64 %n
  %whole = icmp ne i64 %kind, 0
  br i1 %whole, label %integer, label %real
real:
  %item_type_at = getelementptr i8, ptr %item, i64 $type
  %item_type = load ptr, ptr %item_type_at
  %plain = icmp eq ptr %item_type, @float_type
  br i1 %plain, label %plain_real, label %other_real
plain_real:
  %value_at = getelementptr i8, ptr %item, i64 $header
  %value = load double, ptr %value_at
  store double %value, ptr %word_at
  br label %number_next
other_real:
  %converted = call double @PyFloat_AsDouble(ptr %item)
  store double %converted, ptr %word_at
  %doubtful = fcmp oeq double %converted, -1.0
  br i1 %doubtful, label %doubt, label %number_next
integer:
  %any_size = icmp eq i64 %kind, $bits
  br i1 %any_size, label %bits, label %signed
bits:
  %low = call i64 @PyLong_AsUnsignedLongLongMask(ptr %item)
  br label %converted_integer
signed:
  %exact_integer = call i64 @PyLong_AsLongLong(ptr %item)
  br label %converted_integer
converted_integer:
  %integral = phi i64 [ %low, %bits ], [ %exact_integer, %signed ]
  store i64 %integral, ptr %word_at
  %suspicious = icmp eq i64 %integral, -1
  br i1 %suspicious, label %doubt, label %number_next
doubt:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %number_next, label %fail
number_next:
  %n1 = add i64 %n, 1
  br label %number_head

arrays_begin:
  %arrays_size = load i64, ptr %arrays_size_at
  %items = load ptr, ptr %arrays_items_at
  %enough = icmp sge i64 %arrays_size, %length
  br i1 %enough, label %array_head, label %bad_length
array_head:
  %i = phi i64 [ 0, %arrays_begin ], [ %i1, %array_next ]
  %more_arrays = icmp slt i64 %i, %slots
  br i1 %more_arrays, label %array, label %run
array:
  %slot_at = getelementptr i64, ptr %slot_list, i64 %i
  %slot = load i64, ptr %slot_at
  %array_at = getelementptr ptr, ptr %items, i64 %slot
  %object = load ptr, ptr %array_at
  %object_type_at = getelementptr i8, ptr %object, i64 $type
  %object_type = load ptr, ptr %object_type_at
  %exact = icmp eq ptr %object_type, @array_type
  br i1 %exact, label %array_next, label %inexact
inexact:
  %is_array = call i32 @PyType_IsSubtype(ptr %object_type, ptr @array_type)
  %derived = icmp ne i32 %is_array, 0
  br i1 %derived, label %array_next, label %bad_array
array_next:
  %data_at = getelementptr i8, ptr %object, i64 $header
  %data = load ptr, ptr %data_at
  %entry_at = getelementptr ptr, ptr %table, i64 %i
  store ptr %data, ptr %entry_at
  %i1 = add i64 %i, 1
  br label %array_head

run:
  %step_at = getelementptr i64, ptr %words, i64 $step
  %flags_at = getelementptr i64, ptr %words, i64 $flags
  %step = load ptr, ptr %step_at
  %flags = load i64, ptr %flags_at
  %release_bit = and i64 %flags, $releases
  %releases = icmp ne i64 %release_bit, 0
  br i1 %releases, label %release, label %held
release:
  %saved = call ptr @PyEval_SaveThread()
  br label %held
held:
  %thread = phi ptr [ null, %run ], [ %saved, %release ]
  %parallel_bit = and i64 %flags, $parallel
  %parallel = icmp ne i64 %parallel_bit, 0
  br i1 %parallel, label %together, label %alone
together:
  %state = getelementptr i64, ptr %words, i64 $state
  %most_at = getelementptr i64, ptr %words, i64 $most
  %most = load i64, ptr %most_at
  call void @choose(ptr @pool, ptr %state, ptr %step, ptr %table, i64 %most)
  br label %done
alone:
  call void %step(ptr %table, i64 0, i64 1, ptr @tj_alone)
  br label %done
done:
  store atomic i64 0, ptr %lock release, align 8
  br i1 %releases, label %restore, label %leave
restore:
  call void @PyEval_RestoreThread(ptr %thread)
  br label %leave
leave:
  %yes = call ptr @PyBool_FromLong(i64 1)
  ret ptr %yes

bad_lists:
  call void @PyErr_SetString(ptr @type_error, ptr @not_lists)
  ret ptr null
bad_length:
  call void @PyErr_SetString(ptr @type_error, ptr @too_short)
  br label %fail
bad_array:
  call void @PyErr_SetString(ptr @type_error, ptr @not_array)
  br label %fail
fail:
  store atomic i64 0, ptr %lock release, align 8
  ret ptr null
}

define i32 @tj_take(ptr %lock) nounwind {
entry:
  %epoch = load i64, ptr @tj_epoch
  %user = load atomic i64, ptr %lock monotonic, align 8
  %taken = icmp eq i64 %user, %epoch
  br i1 %taken, label %busy, label %try
try:
  %old = cmpxchg ptr %lock, i64 %user, i64 %epoch acq_rel monotonic
  %mine = extractvalue { i64, i1 } %old, 1
  %found = zext i1 %mine to i32
  ret i32 %found
busy:
  ret i32 0
}

define void @tj_copy(ptr %table, i64 %thread, i64 %threads, ptr %pool) nounwind {
entry:
  %to_at = getelementptr ptr, ptr %table, i64 3
  %to = load ptr, ptr %to_at
  %words = load <3 x i64>, ptr %table, align 8
  store <3 x i64> %words, ptr %to, align 8
  ret void
}
"""


def entry_ir() -> str:
    """The module of the built-in function."""
    values: dict[str, object] = {
        **DESCRIPTOR,
        **NUMBER_KINDS,
        **thread_choice_ir.choice_values(),
        "brief": POOL_LAYOUT["brief"],
        "head_words": DESCRIPTOR_WORDS,
    }
    values |= {
        "bits": NUMBER_KINDS["bits"],
        "header": OBJECT_HEADER,
        "type": OBJECT_HEADER - 8,
        "items": OBJECT_HEADER + 8,
        "parallel": PARALLEL_FLAG,
        "releases": RELEASES_GIL_FLAG,
    }
    lines = [f'@{name} = private constant [{len(says) + 1} x i8] c"{says}\\00"' for name, says in MESSAGES.items()]
    return Template(ENTRY_IR + thread_choice_ir.CHOICE_IR).substitute(values, messages="\n".join(lines))
