"""Fusion: decide which ops share a loop nest. The result is a list of steps, each a loop nest, a contraction with its epilogue,
or an opaque op.

Nodes are placed one after the other, in the order of the recording. A node may join the step that makes what it reads, or a
later one, if it reads only elements of the row that the loop is at. Steps are never moved, so there are no cycles. Of the steps
that it may join, it joins the one with which it shares the most bytes. Ops that only move data, and cheap ops of one operand,
are placed nowhere: they are inlined, that is, computed again by each reader.

Every decision is noted, with its reason, in `Schedule.decisions`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, GraphError, Node
from ..ir.expr import EXPENSIVE_OPS, Expr, ExprBuilder, indirect_exprs, walk
from ..ir.index import ZERO, Index, Var, atom, unflatten_index, var
from ..lowering.op_lowering import Place, is_lowerable, is_scatter_add, scatter_element
from ..lowering.random_ops import is_lowerable_random
from ..lowering.unroll_reductions import is_unrolled
from ..prepare.bounds_checks import BOUNDS_CHECK, any_reduction, check_exprs
from ..prepare.canonicalize import REDUCTIONS
from ..prepare.concat_layout import CONCAT_LAYOUT
from ..prepare.primitive_graph import PrimitiveGraph
from .element_reader import ElementReader
from .prologue_fusion import ViewChains, is_light
from .step import BufferView, Domain, Member, Step, UnfusableError, reduction_domain, transpose_domain

CONTRACTIONS = ("matmul", "conv", "conv_input_grad", "conv_weight_grad")
MAX_HOISTED = 1 << 16  # elements of values that are computed first if they follow from inputs alone,
HOISTED_RATIO = 8  # if the largest value has at least so many times as many
MAX_STREAMS = 40  # buffers that one loop nest reads and writes
MAX_INLINED_OPS, MAX_INLINED_LEAVES = 8, 4  # of an expression that each reader computes again
PARALLEL_CHECK = 1 << 15  # indices from which a bounds check is shared among threads
MAX_SINGLE_READER_OPS = 64  # of an inlined expression that has one reader
MAX_PROLOGUE_READERS = 2  # contractions that may each compute the same prologue


class Schedule:
    """Places nodes into steps: see the module's text."""

    def __init__(self, graph: PrimitiveGraph, special: Any, gpu: bool = False, packing: Any = None) -> None:
        self.graph = graph
        self.forms = graph.forms
        self.exprs = ExprBuilder()
        self.special = special  # special(node, schedule): the domain of a contraction's epilogue, or None for other kernels
        self.gpu = gpu  # contractions compute light operands as they load them, and random masks are inlined
        self.packing = packing  # the cost model of prologues, on a CPU: `codegen/llvm/prologue_cost.py`
        self.prologue_candidates: set[str] = set()  # values that only contractions read, which may compute them
        self.steps: list[Step] = []
        self.home_step: dict[str, int] = {
            x.name: -1 for x in graph.inputs
        }  # by value in memory: the step that makes it, -1 for inputs
        self.producer: dict[str, tuple[Node, int]] = {}
        self.inlined: set[str] = set()
        self.materialised: set[str] = set()  # values that were stored after steps had inlined them
        self.readers: dict[str, int] = {}  # by input: the last step that reads it
        self.strides: dict[str, tuple[int, ...]] = {}
        self.decisions: list[str] = list(graph.decisions)
        self.blocks: dict[str, list[tuple[str, int]]] = {}  # by concat layout: its parts and their offsets in bytes
        self.known_fusable: dict[Node, bool] = {}  # which nodes loops can compute
        self.write_back_targets = {value: w.input.name for w, value in graph.write_backs}  # by value: the input it overwrites
        for x in graph.inputs:
            self.strides[x.name] = element_strides(self.forms[x.name])
        for o, value in graph.outputs:
            if value not in self.strides and value not in self.write_back_targets:
                self.strides[value] = element_strides(self.forms[o.value])
        self.visible = {v for _, v in graph.outputs} | set(self.write_back_targets)  # values that the caller can see
        self.must_store = self.visible | self.stored_operands() | graph.stored
        self.last_use = {x: i for i, node in enumerate(graph.nodes) for x in node.values()}
        self.costs: dict[str, tuple[frozenset[str], int, bool]] = {}  # by inlined value: see `cost`
        self.dependent: dict[str, set[str]] = {}  # by input: the inlined values that depend on it
        self.consumers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.values():
                self.consumers.setdefault(name, []).append(node)
        self.at = 0  # number of the node being placed

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.steps)

    # ---- values that are stored in any case

    def stored_operands(self) -> set[str]:
        """Values that contractions and opaque ops read, if only through views."""
        chains = self.chains = ViewChains(self.graph.nodes, self.forms, self.can_fuse)
        found: Counter[str] = Counter()
        computed: set[str] = set()
        for node in self.graph.nodes:
            if not self.can_fuse(node):
                computing = self.gpu and node.op.name in CONTRACTIONS
                ends = {chains.end(x, computing) for x in node.values()}
                computed |= {x for x in ends if computing and chains.follows_from_input(x, node)}
                found.update(ends)
        if self.packing is not None:
            self.prologue_candidates = {x for x in found if self.is_prologue_candidate(x)}
        return {x for x, readers in found.items() if x not in computed or readers > 1} - self.prologue_candidates

    def is_prologue_candidate(self, x: str) -> bool:
        """True if only a few matmuls read a value that loops can compute: they may compute it while packing."""
        maker = self.chains.producer.get(x)
        if x in self.visible or maker is None or len(maker.results) != 1 or not is_lowerable(maker, self.forms):
            return False
        readers = self.chains.ends(x)
        return len(readers) <= MAX_PROLOGUE_READERS and all(
            node.op.name == "matmul" and self.special(node, self) is not None for node in readers
        )

    def can_fuse(self, node: Node) -> bool:
        if node not in self.known_fusable:
            self.known_fusable[node] = self.find_can_fuse(node)
        return self.known_fusable[node]

    def find_can_fuse(self, node: Node) -> bool:
        if is_unrolled(node, self.forms) or is_lowerable_random(node, self.forms):
            return True
        if node.op.name in REDUCTIONS:
            return is_reducible(node, self.forms)
        return is_lowerable(node, self.forms) or is_scatter_add(node, self.forms) or node.op is BOUNDS_CHECK

    # ---- placing

    def run(self) -> None:
        for i, node in self.in_order():
            self.at = i
            self.producer.update({name: (node, k) for k, name in enumerate(node.results)})
            if node.op.name == "constant":
                self.home_step[node.results[0]] = -1
            elif node.op is CONCAT_LAYOUT:
                self.place_concat(node)
            elif self.gpu and self.is_mask(node):
                self.inline(node)
            elif is_unrolled(node, self.forms) or is_lowerable_random(node, self.forms):
                for k, name in enumerate(node.results):
                    self.place_element(node, name, k)
            elif node.op.name in REDUCTIONS and is_reducible(node, self.forms):
                self.place_reduction(node)
            elif node.op is BOUNDS_CHECK:
                self.place_check(node)
            elif is_scatter_add(node, self.forms):
                self.place_scatter(node)
            elif not is_lowerable(node, self.forms):
                self.place_special(node)
            elif node.op.kind != "pointwise" or self.is_recomputed(node):
                self.inline(node)
            else:
                self.place_element(node, node.results[0], 0)
            for name in node.results:
                if name in self.inlined and name in self.write_back_targets:
                    self.materialise(name, "it is written back to an input")
        for value in sorted(self.visible & self.inlined):
            self.materialise(value, "it is an output")

    def in_order(self) -> list[tuple[int, Node]]:
        """The nodes as they were recorded, except that small ones which follow from inputs alone come first. An example is the
        number of targets that count: only if it is known first can loops over the logits compute the gradient too."""
        known = set(self.home_step)
        most = MAX_HOISTED
        if not self.gpu:  # on a GPU, launches are reordered by their dependences anyway
            most = min(MAX_HOISTED, max((form.size for form in self.forms.values()), default=0) // HOISTED_RATIO)
        first: list[tuple[int, Node]] = []
        rest: list[tuple[int, Node]] = []
        for i, node in enumerate(self.graph.nodes):
            values = (*node.values(), *node.results)
            small = all(self.forms[x].size <= most and x not in self.write_back_targets for x in values)
            early = small and self.can_fuse(node) and all(x in known for x in node.values())
            (first if early else rest).append((i, node))
            if early:
                known.update(node.results)
        return first + rest

    def is_mask(self, node: Node) -> bool:
        """True if a node draws a random mask, or casts one. Four elements take one block of random words, which a GPU computes
        in less time than it takes to load them."""
        if node.op.name == "cast":
            (x,) = node.values()
            return x in self.inlined and self.is_mask(self.producer[x][0])
        return node.op.name == "random_mask" and is_lowerable_random(node, self.forms)

    def is_recomputed(self, node: Node) -> bool:
        """True if readers compute a node's value again: there is one reader, or computing costs less than loading."""
        (name,) = node.results
        if name in self.must_store:
            return False
        size, leaves, ops, heavy = self.forms[name].size, *self.cost(node)
        if name in self.prologue_candidates:
            return ops <= MAX_SINGLE_READER_OPS
        readers = self.consumers.get(name, [])
        if len(readers) == 1 and ops <= MAX_SINGLE_READER_OPS:
            made = sum(self.forms[r].size for r in readers[0].results)
            if not heavy or readers[0].op.name in REDUCTIONS or made <= size:
                return True
        if size == 1:
            return ops <= MAX_INLINED_OPS
        large = [x for x in leaves if 2 * self.forms[x].size > size]
        return not heavy and len(large) <= 1 and ops <= MAX_INLINED_OPS and len(leaves) <= MAX_INLINED_LEAVES

    def inline(self, node: Node) -> None:
        """Let readers compute a node's values again."""
        found = self.cost(node)
        for name in node.results:
            self.inlined.add(name)
            self.costs[name] = found
            for x in found[0]:
                if self.home_step[x] == -1:
                    self.dependent.setdefault(x, set()).add(name)

    def leaves(self, node: Node) -> frozenset[str]:
        """The values in memory that a node reads."""
        return self.cost(node)[0]

    def cost(self, node: Node) -> tuple[frozenset[str], int, bool]:
        """The values in memory that a node reads, the number of ops in between, and whether one of these is expensive."""
        found: set[str] = set()
        ops, heavy = int(node.op.kind == "pointwise"), node.op.name in EXPENSIVE_OPS
        for x in dict.fromkeys(node.values()):
            if x in self.inlined:
                leaves, more, costly = self.costs[x]
                found |= leaves
                ops, heavy = ops + more, heavy or costly
            else:
                found.add(x)
        return frozenset(found), ops, heavy

    def earliest(self, node: Node, name: str) -> int:
        """The first step that a node could be in: the last one that makes something it reads."""
        leaves = self.leaves(node)
        found = max((self.home_step[x] for x in leaves), default=-1)
        if name in self.graph.rematerialized:
            found = max(found, len(self.steps) - 1)
        target = self.write_back_targets.get(name)
        return found if target is None else max(found, self.readers.get(target, -1))

    def store_before_write(self, target: str, node: Node) -> None:
        """Materialise values that are still to be computed from an input that is about to be overwritten."""
        for name in sorted(self.dependent.get(target, set()) & self.inlined):
            later = name in self.visible or self.last_use.get(name, -1) > self.at
            if later and self.producer[name][0] is not node:
                self.materialise(name, f"{target} is overwritten before it is read")

    def store_shifted_reads(self, target: str, node: Node, name: str, which: int) -> None:
        """Materialise values that read an input at other places than where it is overwritten: x.add_(x.flip(0))."""
        place = symbolic_place(self.forms[name].shape)
        address, reading = self.address(target, place), ElementReader(self, None)
        if reads_elsewhere([reading.define(node, which, place)], target, address):
            for x in sorted({*node.values()} & self.inlined):
                if target in self.sources(x):
                    self.materialise(x, f"{target} is read at other places than it is written")

    def place_element(self, node: Node, name: str, which: int) -> None:
        if name in self.write_back_targets:
            self.store_before_write(self.write_back_targets[name], node)
            self.store_shifted_reads(self.write_back_targets[name], node, name, which)
        leaves = self.leaves(node)
        first = self.earliest(node, name)
        best, score = None, -1
        mask = self.gpu and self.is_mask(node)
        for step in self.steps[max(first, 0) :]:
            form = self.forms[name]
            shared = form.nbytes * self.draws_mask(step, node, name) if mask else self.shared_bytes(step, leaves, form.size)
            if not (step.is_open and (step.number == first or shared) and shared > score):
                continue
            if self.fuse_element(step, node, name, which, dry_run=True):
                best, score = step, shared
        if best is None or not self.fuse_element(best, node, name, which):
            best = self.open_step(self.forms[name].shape, node)
            if not self.fuse_element(best, node, name, which):
                raise AssertionError(f"[compile] {name} fits nowhere")
            self.note(name, node, f"step {best.number}: loops of its own over {list(self.forms[name].shape)}")
        else:
            self.note(name, node, f"step {best.number}: shares {score} bytes")
        self.note_home(best, node, name)

    def draws_mask(self, step: Step, node: Node, name: str) -> bool:
        """True if a step draws the same random mask already."""
        place = step.domain.place(self.forms[name].shape) if step.is_open and step.domain is not None else None
        if place is None:
            return False
        expr = ElementReader(self, step).define(node, 0, place)
        return any(expr in walk([m.expr]) for m in step.members.values() if m.expr is not None)

    def shared_bytes(self, step: Step, leaves: frozenset[str], size: int) -> int:
        """The bytes of a step that a value of `size` elements needs too. A single element does not count for larger values, or
        the factor of clipped gradients would put all of them into one loop, of which there are more than it has streams for."""
        common = [self.forms[x] for x in leaves if x in step.members or x in step.reads]
        return sum(form.nbytes for form in common if form.size > 1 or size == 1)

    def note_home(self, step: Step, node: Node, name: str) -> None:
        """Note the step that makes a value, and that the inputs it depends on are read there."""
        self.home_step[name] = step.number
        if name in self.write_back_targets:
            step.writes.add(self.write_back_targets[name])
        for x in self.leaves(node):
            if self.home_step.get(x) == -1:
                self.readers[x] = max(self.readers.get(x, -1), step.number)

    def note(self, name: str, node: Node, what: str) -> None:
        self.decisions.append(f"{name} = {node.op.name}: {what}")

    def open_step(self, shape: tuple[int, ...], node: Node) -> Step:
        cols = shape[-1] if shape else 1
        step = Step(len(self.steps), Domain(math.prod(shape) // cols if cols else 0, cols), shape=shape)
        self.steps.append(step)
        return step

    def fuse_element(self, step: Step, node: Node, name: str, which: int, dry_run: bool = False) -> bool:
        """Make a value a member of a step, if that is possible; only find out if `dry_run`."""
        assert step.domain is not None
        shape = self.forms[name].shape
        size, domain = math.prod(shape), step.domain
        if size != domain.rows * domain.cols and not (size == domain.rows and step.rows_fixed and step.node is None):
            return False
        place = domain.place(shape)
        if place is None:
            return False
        try:
            expr = ElementReader(self, step).define(node, which, place)
        except UnfusableError:
            return False
        reads = expr.reads
        if len(step.reads | reads) + len(step.members) > MAX_STREAMS and step.members:
            return False
        target = self.write_back_targets.get(name)
        if target is not None:
            if reads_elsewhere([expr], target, self.address(target, place)):
                return False
            if self.readers.get(target, -1) == step.number and not self.reads_in_place(step, target, place):
                return False
        if not dry_run:
            step.members[name] = Member(node, name, which, "element", expr)
            step.reads |= reads
        return True

    def reads_in_place(self, step: Step, target: str, place: Place) -> bool:
        """True if a step reads an input only at the place where it is about to write it."""
        made = [m.expr for m in step.members.values() if m.expr is not None]
        return target not in step.operands and not reads_elsewhere(made, target, self.address(target, place))

    # ---- reductions

    def place_reduction(self, node: Node) -> None:
        (name,), x = node.results, node.operands[0]
        dims = tuple(sorted(d % max(len(self.forms[x].shape), 1) for d in node.attrs["dims"])) if self.forms[x].shape else ()
        domain = reduction_domain(self.forms[x].shape, dims)
        leaves = self.leaves(node)
        first = self.earliest(node, name)
        best, kind, score = None, "", -1
        for step in self.steps[max(first, 0) :]:
            if not step.is_open or step.node is not None:
                continue
            shared = self.shared_bytes(step, leaves, self.forms[x].size)
            if shared > score and (step.number == first or shared):
                found = self.reduction_kind(step, node, domain)
                if found:
                    best, kind, score = step, found, shared
        if best is None:
            best = Step(len(self.steps), domain, rows_fixed=True, shape=self.forms[x].shape)
            self.steps.append(best)
            kind = "total"
            self.note(name, node, f"step {best.number}: loops of its own over {domain}")
        else:
            self.note(name, node, f"step {best.number}: {kind} of its rows, shares {score} bytes")
        self.fix_rows(best, domain, kind)
        expr = ElementReader(self, best).input_of(node, kind)
        best.members[name] = Member(node, name, 0, kind, expr)
        best.reads |= expr.reads
        self.note_home(best, node, name)

    def reduction_kind(self, step: Step, node: Node, domain: Domain) -> str:
        """The kind of member that a reduction can be in a step: "total" of its rows, "column" or "down"; "" if it cannot."""
        assert step.domain is not None
        if step.rows_fixed and domain.rows == 1 < step.domain.cols and domain.cols == step.domain.rows:
            if step.reads_across():
                return ""  # rows are the vector lanes there, so nothing can be summed along them
            try:
                ElementReader(self, step).input_of(node, "down")
                return "down"
            except UnfusableError:
                return ""
        kinds = [("total", domain), ("column", transpose_domain(domain))]
        # totals first where there is one row: a column of one element would have no lanes
        for kind, wanted in kinds if step.rows_fixed or domain.rows == 1 else kinds[::-1]:
            if kind == "column" and wanted.flat != Domain(wanted.rows, wanted.cols).flat:
                continue
            if step.rows_fixed and not step.domain.same_as(wanted):
                continue
            if not step.rows_fixed and step.domain.rows * step.domain.cols != wanted.rows * wanted.cols:
                continue
            before = step.domain, step.cache
            step.domain, step.cache = wanted, {}
            try:
                if not step.rows_fixed:
                    self.rebuild_exprs(step, dry_run=True)
                ElementReader(self, step).input_of(node, kind)
                return kind
            except UnfusableError:
                pass
            finally:
                step.domain, step.cache = before
        return ""

    def fix_rows(self, step: Step, domain: Domain, kind: str) -> None:
        if not step.rows_fixed:
            step.domain = domain if kind == "total" else transpose_domain(domain)
            step.rows_fixed = True
            self.rebuild_exprs(step)

    def rebuild_exprs(self, step: Step, dry_run: bool = False) -> None:
        """Compute the members' expressions again, for a step whose domain has changed."""
        assert step.domain is not None
        step.cache = {}
        for m in step.members.values():
            place = step.domain.place(self.forms[m.name].shape)
            if place is None:
                raise UnfusableError
            expr = ElementReader(self, step, upto=m.name).define(m.node, m.which, place)
            if not dry_run:
                m.expr = expr
        if not dry_run:  # values that were inlined at first may be in memory by now
            step.reads = set().union(*[m.expr.reads for m in step.members.values() if m.expr is not None])

    def place_scatter(self, node: Node) -> None:
        """Open a loop nest over the added elements, in order where the order matters."""
        (name,), shape = node.results, self.forms[node.operands[0]].shape
        cols = shape[-1] if shape else 1
        step = Step(len(self.steps), Domain(math.prod(shape) // cols if cols else 0, cols), rows_fixed=True, shape=shape)
        assert step.domain is not None
        self.steps.append(step)
        place = unflatten_index(step.domain.flat, shape)
        value, where = scatter_element(ElementReader(self, step), node, place)
        index = self.address(name, where)
        step.members[name] = Member(node, name, 0, "scatter", value, index)
        step.reads |= value.reads.union(*[e.reads for e in indirect_exprs(index)])
        self.note(name, node, f"step {step.number}: loops of its own over the added elements")
        self.note_home(step, node, name)

    def place_check(self, node: Node) -> None:
        """Open a loop nest over indices, after which the program may have to stop. Large ones are shared among threads."""
        good, bad = node.results
        shape = self.forms[good].shape
        rows = math.prod(shape[:-1]) if math.prod(shape) >= PARALLEL_CHECK else 1
        domain = Domain(rows, math.prod(shape) // rows)
        step = Step(len(self.steps), domain, rows_fixed=True, shape=shape, check=bad)
        self.steps.append(step)
        place = unflatten_index(domain.flat, shape)
        index, wrong = check_exprs(self.exprs, ElementReader(self, step).get(node.operands[0], place, ()), node.attrs)
        step.members[good] = Member(node, good, 0, "element", index)
        if rows == 1:
            step.members[bad] = Member(any_reduction(node), bad, 0, "total", wrong)
        else:
            of_row = f"{bad} of row"
            self.forms[of_row] = contiguous((rows,), self.forms[bad].dtype, self.forms[bad].where)
            step.members[of_row] = Member(any_reduction(node), of_row, 0, "total", wrong)
            step.members[bad] = Member(any_reduction(node), bad, 0, "down", self.exprs.total(of_row, "bool"))
        step.reads |= index.reads
        self.visible.add(bad)
        self.note(good, node, f"step {step.number}: bounds check, before the indices are used")
        for name in node.results:
            self.note_home(step, node, name)

    def place_concat(self, node: Node) -> None:
        """Each operand of a concat layout is stored in its part of the whole, which exists once the last of them is written."""
        (name,), offset = node.results, 0
        self.blocks[name] = []
        for x in node.values():
            if x in self.inlined:
                self.materialise(x, f"it is a part of {name}")
            self.visible.add(x)
            self.blocks[name].append((x, offset))
            offset += self.forms[x].nbytes
        self.home_step[name] = max(self.home_step[x] for x in node.values())

    # ---- contractions and opaque ops

    def place_special(self, node: Node) -> None:
        for x in node.values():
            self.make_readable(x, node)
        step = Step(len(self.steps), None, node)
        for x in dict.fromkeys(node.values()):
            view = self.strided(x)
            if view is None:
                step.computed[x] = self.elements(x)
            else:
                step.views[x] = view
        step.domain = self.special(node, self)
        step.rows_fixed = True
        self.steps.append(step)
        for i, name in enumerate(node.results):
            self.home_step[name] = step.number
            if step.domain is None:
                self.choose_strides(name)
            if step.domain is not None:
                step.members[name] = Member(node, name, i, "matmul")
        for x in node.values():
            for leaf in self.sources(x):
                step.reads.add(leaf)
                step.operands.add(leaf)
                if self.home_step.get(leaf) == -1:
                    self.readers[leaf] = max(self.readers.get(leaf, -1), step.number)
        self.note(", ".join(node.results), node, f"step {step.number}: a kernel of its own")

    def sources(self, x: str) -> set[str]:
        """The values in memory that an operand is read from or computed from, as of now; `leaves` are as of when it was
        inlined."""
        found, stack = {x}, [x]
        while stack:
            name = stack.pop()
            if name in self.inlined:
                more = set(self.producer[name][0].values()) - found
                found |= more
                stack += more
        return found - self.inlined

    def choose_strides(self, name: str) -> None:
        """Store a result that all readers permute in the same way in their order, as attention heads that become rows again."""
        readers = self.consumers.get(name, [])
        dims = {node.attrs["dims"] if node.op.name == "permute" else None for node in readers}
        if len(dims) != 1 or name in self.strides or name in self.visible:
            return
        (order,) = dims
        if order is None:
            return
        shape, steps, n = self.forms[name].shape, [0] * len(order), 1
        for d in reversed(order):
            steps[d] = n
            n *= max(shape[d], 1)
        self.strides[name] = tuple(steps)

    def make_readable(self, x: str, node: Node) -> None:
        """Materialise an operand, unless it is a view of something in memory or is computed while it is read."""
        if x not in self.inlined or self.strided(x) is not None:
            return
        computing = self.gpu and node.op.name in CONTRACTIONS and self.special(node, self) is not None
        if computing and is_light(self.elements(x), self.forms[x].size, self.forms):
            return
        end = self.chains.end(x, False)
        if end in self.prologue_candidates and end in self.inlined:
            if self.fuse_prologue(x, end, node):
                return
            self.materialise(end, f"{node.op.name} reads it")
            self.prologue_candidates.discard(end)
            if self.strided(x) is not None:
                return
        while self.producer[x][0].op.name == "permute" and self.producer[x][0].operands[0] in self.inlined:
            x = str(self.producer[x][0].operands[0])  # stored before the permute, along rows, and read as a view
        self.materialise(x, f"{node.op.name} reads it")

    def fuse_prologue(self, x: str, end: str, node: Node) -> bool:
        """Decide by the cost model whether a matmul computes an operand, a view of the value `end`, while packing it."""
        views = {y: self.strided(y) or (y, 0, self.layout(y)) for y in node.values() if y != x}
        readers = len(self.chains.ends(end))
        found = self.packing.verdict(
            node, x, self.elements(x), views, self.forms, readers, lambda leaf: self.is_stored_anyway(leaf, node)
        )
        if found is None:
            return False
        taken = bool(found.score > 0)
        how = "fuses it as a prologue, computed while packing" if taken else "does not fuse it as a prologue"
        self.decisions.append(f"{x}: {node.op.name} {node.results[0]} {how}, score {found.score:.0f} ns: {found.why}")
        return taken

    def is_stored_anyway(self, x: str, node: Node) -> bool:
        """True if a value is in memory whether or not a matmul's prologue reads it: it is an input or an output, or others read
        it, in another step or together with something made after it."""
        home = self.home_step.get(x, -1)
        if home == -1 or x in self.visible or any(step.number != home and x in step.reads for step in self.steps):
            return True
        derived, later = {x}, {*node.results, *[name for name, at in self.home_step.items() if at > home]}
        for other in self.graph.nodes:
            given = other.values()
            after, from_it = not later.isdisjoint(given), not derived.isdisjoint(given)
            if after and from_it and other is not node:
                return True
            if after:
                later.update(other.results)
            elif from_it and other.op.kind in ("pointwise", "movement"):
                derived.update(other.results)
        return False

    def elements(self, x: str) -> Expr:
        """A value's element as an expression of the coordinates d0, d1, ..."""
        return ElementReader(self, None).get(x, symbolic_place(self.forms[x].shape), ())

    def strided(self, x: str) -> BufferView | None:
        """A value as a strided view of a buffer; None if it is none."""
        variables = variables_of(self.forms[x].shape)
        try:
            found = self.elements(x)
        except UnfusableError:
            return None
        if found.kind != "load" or found.data[2]:
            return None
        buffer, index, _ = found.data
        strides = [index.factor(v) for v in variables]
        rest = index
        for v in variables:
            rest = rest.without(v)
        if any(s is None for s in strides) or rest.terms:
            return None
        return buffer, rest.const, tuple(strides)

    def materialise(self, name: str, why: str) -> None:
        """Store a value that was inlined so far."""
        node, which = self.producer[name]
        self.inlined.discard(name)
        self.materialised.add(name)
        self.decisions.append(f"{name}: stored in memory: {why}")
        self.place_element(node, name, which)

    def address(self, name: str, place: Place) -> Index:
        found = ZERO
        for i, s in zip(place, self.layout(name), strict=True):
            found = found + i * s
        return found

    def layout(self, name: str) -> tuple[int, ...]:
        """Strides in elements."""
        if name not in self.strides:
            steps, n = [], 1
            for size in reversed(self.forms[name].shape):
                steps.append(n)
                n *= max(size, 1)
            self.strides[name] = tuple(reversed(steps))
        return self.strides[name]


def reads_elsewhere(exprs: list[Expr], buffer: str, address: Index) -> bool:
    """True if some expression reads a buffer at another place than an address."""
    return any(e.kind == "load" and e.data[0] == buffer and e.data[1] != address for e in walk(exprs))


def variables_of(shape: tuple[int, ...]) -> list[Var]:
    return [var(f"d{i}", n) for i, n in enumerate(shape)]


def symbolic_place(shape: tuple[int, ...]) -> Place:
    """The place d0, d1, ..., with 0 for dims of size 1."""
    return tuple(atom(v) if v.size != 1 else ZERO for v in variables_of(shape))


def element_strides(form: Form) -> tuple[int, ...]:
    """Strides in elements. GraphError if they are not whole: an array may be a field of records."""
    if any(s % form.itemsize for s, n in zip(form.strides, form.shape, strict=True) if n > 1):
        raise GraphError(
            f"[compile] the strides {form.strides} of an array are not multiples of its {form.itemsize}-byte elements"
        )
    return tuple(s // form.itemsize for s in form.strides)


def is_reducible(node: Node, forms: dict[str, Any]) -> bool:
    x = node.operands[0]
    if not isinstance(x, str) or "dims" not in node.attrs:
        return False
    if forms[x].dtype.kind not in "fiub" and forms[x].dtype.itemsize != 2:
        return False
    return not (forms[x].size == 0 and node.op.name in ("amax", "amin"))
