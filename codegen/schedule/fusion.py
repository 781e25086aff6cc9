"""Which ops share a loop nest: a list of steps, each of which is loops, a contraction with what follows it, or an op that is
called as it is.

Nodes are placed one after the other, in the order of the recording. A node may join the step that makes what it reads, if there
it reads only elements of the row that the loop is at, or a later one; a step is never moved, so there are no cycles. Of the
steps that it may join it joins the one with which it shares the most bytes. Ops that only move data, and cheap ones of one
operand, are placed nowhere: who reads them computes them again.

Every decision is noted, with its reason, in `Schedule.decisions`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, GraphError, Node
from ..prepare.bounds_checks import WITHIN, any_of, looked_at
from ..lowering.random_ops import drawable
from ..ir.expr import HEAVY, Expr, Exprs, picked, walk
from ..lowering.unroll_reductions import written_out
from ..ir.index import ZERO, Index, Var, atom, unflattened, var
from ..prepare.concat_layout import JOINED
from ..prepare.concat_layout import place as place_joined
from ..lowering.op_lowering import Place, lowerable, scattered, scatters
from .prologue_fusion import Chains, light
from ..prepare.canonicalize import REDUCTIONS, Prepared
from .element_reader import Reading
from .step import Domain, Member, Step, UnfusableError, View, along, turned

PRODUCTS = ("matmul", "conv", "conv_input_grad", "conv_weight_grad")
SMALL = 1 << 16  # elements of what is computed first if it can be,
FAR_SMALLER = 8  # and how many times as large the largest value is at least
MOST_STREAMS = 40  # buffers that one loop nest reads and writes
MOST_OPS, MOST_LEAVES = 8, 4  # of an expression that is computed again by each reader
MANY = 1 << 15  # indices that are looked at by all threads
LONGEST = 64  # ops of an expression that has one reader
MOST_PRODUCTS = 2  # that compute the same while they pack it


class Schedule:
    """Places nodes: see the module's text."""

    def __init__(self, graph: Prepared, special: Any, gpu: bool = False, packing: Any = None) -> None:
        self.graph = graph
        self.forms = graph.forms
        self.exprs = Exprs()
        self.special = special  # which nodes have kernels of their own: special(node) -> a Domain for what may follow, or None
        self.gpu = gpu  # whether products compute what they read while they read it, and random masks are computed again
        self.packing = packing  # judges what products compute while they pack it: see `llvm/on_packing.py`
        self.waiting: set[str] = set()  # values that only products read, which may compute them
        self.steps: list[Step] = []
        self.home: dict[str, int] = {x.name: -1 for x in graph.inputs}  # of values in memory: the step that makes them
        self.maker: dict[str, tuple[Node, int]] = {}
        self.transparent: set[str] = set()
        self.repeated: set[str] = set()  # values that came into memory after steps had computed them again
        self.readers: dict[str, int] = {}  # of inputs: the last step that reads them
        self.strides: dict[str, tuple[int, ...]] = {}
        self.decisions: list[str] = list(graph.decisions)
        self.blocks: dict[str, list[tuple[str, int]]] = {}  # of values that others are parts of: these, and at which bytes
        self.fused: dict[Node, bool] = {}  # which nodes loops can compute
        self.backs = {value: w.input.name for w, value in graph.write_backs}  # of values: the input whose memory they become
        for x in graph.inputs:
            self.strides[x.name] = in_elements(self.forms[x.name])
        for o, value in graph.outputs:
            if value not in self.strides and value not in self.backs:
                self.strides[value] = in_elements(self.forms[o.value])
        self.kept = {v for _, v in graph.outputs} | set(self.backs)  # values that become memory somebody can see
        self.wanted = self.kept | self.operands() | graph.stored
        self.last_use = {x: i for i, node in enumerate(graph.nodes) for x in node.values()}
        self.costs: dict[str, tuple[frozenset[str], int, bool]] = {}  # of values that are computed again: see `cost`
        self.dependent: dict[str, set[str]] = {}  # of inputs: the values that are computed again from them
        self.consumers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.values():
                self.consumers.setdefault(name, []).append(node)
        self.at = 0  # which node is being placed

    # ---- which values are in memory whatever happens

    def operands(self) -> set[str]:
        """Values that what is not loops reads, if only as views of them."""
        chains = self.chains = Chains(self.graph.nodes, self.forms, self.fusable)
        found: Counter[str] = Counter()
        computed: set[str] = set()
        for node in self.graph.nodes:
            if not self.fusable(node):
                computing = self.gpu and node.op.name in PRODUCTS
                ends = {chains.end(x, computing) for x in node.values()}
                computed |= {x for x in ends if computing and chains.follows_from_input(x, node)}
                found.update(ends)
        if self.packing is not None:
            self.waiting = {x for x in found if self.may_wait(x)}
        return {x for x, readers in found.items() if x not in computed or readers > 1} - self.waiting

    def may_wait(self, x: str) -> bool:
        """Whether only a few products read a value, which loops can compute: they may compute it while they pack it."""
        maker = self.chains.maker.get(x)
        if x in self.kept or maker is None or len(maker.results) != 1 or not lowerable(maker, self.forms):
            return False
        readers = self.chains.ends(x)
        return len(readers) <= MOST_PRODUCTS and all(
            node.op.name == "matmul" and self.special(node, self) is not None for node in readers
        )

    def fusable(self, node: Node) -> bool:
        if node not in self.fused:
            self.fused[node] = self.is_fusable(node)
        return self.fused[node]

    def is_fusable(self, node: Node) -> bool:
        if written_out(node, self.forms) or drawable(node, self.forms):
            return True
        if node.op.name in REDUCTIONS:
            return reducible(node, self.forms)
        return lowerable(node, self.forms) or scatters(node, self.forms) or node.op is WITHIN

    # ---- placing

    def run(self) -> None:
        for i, node in self.in_order():
            self.at = i
            self.maker.update({name: (node, k) for k, name in enumerate(node.results)})
            if node.op.name == "constant":
                self.home[node.results[0]] = -1
            elif node.op is JOINED:
                place_joined(self, node)
            elif self.gpu and self.is_mask(node):
                self.see_through(node)
            elif written_out(node, self.forms) or drawable(node, self.forms):
                for k, name in enumerate(node.results):
                    self.place_element(node, name, k)
            elif node.op.name in REDUCTIONS and reducible(node, self.forms):
                self.place_reduction(node)
            elif node.op is WITHIN:
                self.place_check(node)
            elif scatters(node, self.forms):
                self.place_scatter(node)
            elif not lowerable(node, self.forms):
                self.place_special(node)
            elif node.op.kind != "pointwise" or self.cheap(node):
                self.see_through(node)
            else:
                self.place_element(node, node.results[0], 0)
            for name in node.results:
                if name in self.transparent and name in self.backs:
                    self.materialise(name, "it is written back")
        for value in sorted(self.kept & self.transparent):
            self.materialise(value, "it is handed out")

    def in_order(self) -> list[tuple[int, Node]]:
        """The nodes as they were recorded, but first what is small and follows from inputs alone: the number of classes that
        count, say, without which no loops over all of the logits could be the gradient's too."""
        known = set(self.home)
        most = SMALL
        if not self.gpu:  # there kernels are put into another order anyway, by who waits for whom
            most = min(SMALL, max((form.size for form in self.forms.values()), default=0) // FAR_SMALLER)
        first: list[tuple[int, Node]] = []
        rest: list[tuple[int, Node]] = []
        for i, node in enumerate(self.graph.nodes):
            small = all(self.forms[x].size <= most and x not in self.backs for x in (*node.values(), *node.results))
            early = small and self.fusable(node) and all(x in known for x in node.values())
            (first if early else rest).append((i, node))
            if early:
                known.update(node.results)
        return first + rest

    def is_mask(self, node: Node) -> bool:
        """Whether a node draws a random mask, or converts one. Four elements take one block of random words, which a GPU has
        computed by the time it would have read them."""
        if node.op.name == "cast":
            (x,) = node.values()
            return x in self.transparent and self.is_mask(self.maker[x][0])
        return node.op.name == "random_mask" and drawable(node, self.forms)

    def cheap(self, node: Node) -> bool:
        """Whether readers compute it again: there is one reader, or it costs less than a load of its result."""
        (name,) = node.results
        if name in self.wanted:
            return False
        size, leaves, ops, heavy = self.forms[name].size, *self.cost(node)
        if name in self.waiting:
            return ops <= LONGEST
        readers = self.consumers.get(name, [])
        if len(readers) == 1 and ops <= LONGEST:
            made = sum(self.forms[r].size for r in readers[0].results)
            if not heavy or readers[0].op.name in REDUCTIONS or made <= size:
                return True
        if size == 1:
            return ops <= MOST_OPS
        large = [x for x in leaves if 2 * self.forms[x].size > size]
        return not heavy and len(large) <= 1 and ops <= MOST_OPS and len(leaves) <= MOST_LEAVES

    def see_through(self, node: Node) -> None:
        """Readers compute what a node makes again."""
        found = self.cost(node)
        for name in node.results:
            self.transparent.add(name)
            self.costs[name] = found
            for x in found[0]:
                if self.home[x] == -1:
                    self.dependent.setdefault(x, set()).add(name)

    def leaves(self, node: Node) -> frozenset[str]:
        """The values in memory that a node reads."""
        return self.cost(node)[0]

    def cost(self, node: Node) -> tuple[frozenset[str], int, bool]:
        """The values in memory that a node reads, how many ops lie between, and whether there are heavy ones among them."""
        found: set[str] = set()
        ops, heavy = int(node.op.kind == "pointwise"), node.op.name in HEAVY
        for x in dict.fromkeys(node.values()):
            if x in self.transparent:
                leaves, more, costly = self.costs[x]
                found |= leaves
                ops, heavy = ops + more, heavy or costly
            else:
                found.add(x)
        return frozenset(found), ops, heavy

    def earliest(self, node: Node, name: str) -> int:
        """The first step that a node could be in: what it reads is made there or before."""
        leaves = self.leaves(node)
        found = max((self.home[x] for x in leaves), default=-1)
        if name in self.graph.again:
            found = max(found, len(self.steps) - 1)
        target = self.backs.get(name)
        return found if target is None else max(found, self.readers.get(target, -1))

    def keep_old(self, target: str, node: Node) -> None:
        """What will be computed from an input that is about to be written is computed before."""
        for name in sorted(self.dependent.get(target, set()) & self.transparent):
            later = name in self.kept or self.last_use.get(name, -1) > self.at
            if later and self.maker[name][0] is not node:
                self.materialise(name, f"{target} is written before it is read")

    def read_first(self, target: str, node: Node, name: str, which: int) -> None:
        """What needs an input elsewhere than where it is about to be written is computed before: x.add_(x.flip(0))."""
        place = anywhere(self.forms[name].shape)
        address, reading = self.address(target, place), Reading(self, None)
        if elsewhere([reading.define(node, which, place)], target, address):
            for x in sorted({*node.values()} & self.transparent):
                if target in self.sources(x):
                    self.materialise(x, f"{target} is read elsewhere than where it is written")

    def place_element(self, node: Node, name: str, which: int) -> None:
        if name in self.backs:
            self.keep_old(self.backs[name], node)
            self.read_first(self.backs[name], node, name, which)
        leaves = self.leaves(node)
        first = self.earliest(node, name)
        best, score = None, -1
        mask = self.gpu and self.is_mask(node)
        for step in self.steps[max(first, 0) :]:
            form = self.forms[name]
            shared = form.nbytes * self.draws(step, node, name) if mask else self.shared(step, leaves, form.size)
            if step.open and (step.number == first or shared) and shared > score and self.joins(step, node, name, which, True):
                best, score = step, shared
        if best is None or not self.joins(best, node, name, which):
            best = self.opened(self.forms[name].shape, node)
            if not self.joins(best, node, name, which):
                raise AssertionError(f"[compile] {name} fits nowhere")
            self.note(name, node, f"step {best.number}: loops of its own over {list(self.forms[name].shape)}")
        else:
            self.note(name, node, f"step {best.number}: shares {score} bytes")
        self.settle(best, node, name)

    def draws(self, step: Step, node: Node, name: str) -> bool:
        """Whether a step draws a random mask already, for what it makes."""
        place = step.domain.place(self.forms[name].shape) if step.open and step.domain is not None else None
        if place is None:
            return False
        expr = Reading(self, step).define(node, 0, place)
        return any(expr in walk([m.expr]) for m in step.members.values() if m.expr is not None)

    def shared(self, step: Step, leaves: frozenset[str], size: int) -> int:
        """The bytes that a step has and a value of a size needs too. One element of many is no reason to go through them in one
        loop: by how much all gradients are made shorter, say, of which there are more than a loop has streams for."""
        common = [self.forms[x] for x in leaves if x in step.members or x in step.reads]
        return sum(form.nbytes for form in common if form.size > 1 or size == 1)

    def settle(self, step: Step, node: Node, name: str) -> None:
        """A value has its place: what it reads is read there."""
        self.home[name] = step.number
        if name in self.backs:
            step.writes.add(self.backs[name])
        for x in self.leaves(node):
            if self.home.get(x) == -1:
                self.readers[x] = max(self.readers.get(x, -1), step.number)

    def note(self, name: str, node: Node, what: str) -> None:
        self.decisions.append(f"{name} = {node.op.name}: {what}")

    def opened(self, shape: tuple[int, ...], node: Node) -> Step:
        cols = shape[-1] if shape else 1
        step = Step(len(self.steps), Domain(math.prod(shape) // cols if cols else 0, cols), shape=shape)
        self.steps.append(step)
        return step

    def joins(self, step: Step, node: Node, name: str, which: int, trying: bool = False) -> bool:
        """Make a value a member of a step, if it can be one."""
        assert step.domain is not None
        shape = self.forms[name].shape
        size, domain = math.prod(shape), step.domain
        if size != domain.rows * domain.cols and not (size == domain.rows and step.decided and step.node is None):
            return False
        place = domain.place(shape)
        if place is None:
            return False
        try:
            expr = Reading(self, step).define(node, which, place)
        except UnfusableError:
            return False
        reads = expr.reads
        if len(step.reads | reads) + len(step.members) > MOST_STREAMS and step.members:
            return False
        target = self.backs.get(name)
        if target is not None:
            if elsewhere([expr], target, self.address(target, place)):
                return False
            if self.readers.get(target, -1) == step.number and not self.in_step(step, target, place):
                return False
        if not trying:
            step.members[name] = Member(node, name, which, "element", expr)
            step.reads |= reads
        return True

    def in_step(self, step: Step, target: str, place: Place) -> bool:
        """Whether a step reads an input only where it is about to write it."""
        made = [m.expr for m in step.members.values() if m.expr is not None]
        return target not in step.operands and not elsewhere(made, target, self.address(target, place))

    # ---- reductions

    def place_reduction(self, node: Node) -> None:
        (name,), x = node.results, node.operands[0]
        dims = tuple(sorted(d % max(len(self.forms[x].shape), 1) for d in node.attrs["dims"])) if self.forms[x].shape else ()
        domain = along(self.forms[x].shape, dims)
        leaves = self.leaves(node)
        first = self.earliest(node, name)
        best, kind, score = None, "", -1
        for step in self.steps[max(first, 0) :]:
            if not step.open or step.node is not None:
                continue
            shared = self.shared(step, leaves, self.forms[x].size)
            if shared > score and (step.number == first or shared):
                fits = self.fits(step, node, domain)
                if fits:
                    best, kind, score = step, fits, shared
        if best is None:
            best = Step(len(self.steps), domain, decided=True, shape=self.forms[x].shape)
            self.steps.append(best)
            kind = "total"
            self.note(name, node, f"step {best.number}: loops of its own over {domain}")
        else:
            self.note(name, node, f"step {best.number}: {kind} of its rows, shares {score} bytes")
        self.decide(best, domain, kind)
        expr = Reading(self, best).input_of(node, kind)
        best.members[name] = Member(node, name, 0, kind, expr)
        best.reads |= expr.reads
        self.settle(best, node, name)

    def fits(self, step: Step, node: Node, domain: Domain) -> str:
        """How a reduction can be part of a step: as the total of its rows or of its columns."""
        assert step.domain is not None
        if step.decided and domain.rows == 1 < step.domain.cols and domain.cols == step.domain.rows:
            if step.reads_across():
                return ""  # several rows at a time, which is no place for what is added up along them
            try:
                Reading(self, step).input_of(node, "down")
                return "down"
            except UnfusableError:
                return ""
        kinds = [("total", domain), ("column", turned(domain))]
        for kind, wanted in kinds if step.decided or domain.rows == 1 else kinds[::-1]:  # a column of one would have no lanes
            if kind == "column" and wanted.flat != Domain(wanted.rows, wanted.cols).flat:
                continue
            if step.decided and not step.domain.same_as(wanted):
                continue
            if not step.decided and step.domain.rows * step.domain.cols != wanted.rows * wanted.cols:
                continue
            before = step.domain, step.cache
            step.domain, step.cache = wanted, {}
            try:
                if not step.decided:
                    self.again(step, trying=True)
                Reading(self, step).input_of(node, kind)
                return kind
            except UnfusableError:
                pass
            finally:
                step.domain, step.cache = before
        return ""

    def decide(self, step: Step, domain: Domain, kind: str) -> None:
        if not step.decided:
            step.domain = domain if kind == "total" else turned(domain)
            step.decided = True
            self.again(step)

    def again(self, step: Step, trying: bool = False) -> None:
        """The members' expressions, when the domain is another one."""
        assert step.domain is not None
        step.cache = {}
        for m in step.members.values():
            place = step.domain.place(self.forms[m.name].shape)
            if place is None:
                raise UnfusableError
            expr = Reading(self, step, upto=m.name).define(m.node, m.which, place)
            if not trying:
                m.expr = expr
        if not trying:  # what was computed again at first may be in memory by now
            step.reads = set().union(*[m.expr.reads for m in step.members.values() if m.expr is not None])

    def place_scatter(self, node: Node) -> None:
        """Loops of their own over what is added, one after the other where the order counts."""
        (name,), shape = node.results, self.forms[node.operands[0]].shape
        cols = shape[-1] if shape else 1
        step = Step(len(self.steps), Domain(math.prod(shape) // cols if cols else 0, cols), decided=True, shape=shape)
        assert step.domain is not None
        self.steps.append(step)
        place = unflattened(step.domain.flat, shape)
        value, where = scattered(Reading(self, step), node, place)
        index = self.address(name, where)
        step.members[name] = Member(node, name, 0, "scatter", value, index)
        step.reads |= value.reads.union(*[e.reads for e in picked(index)])
        self.note(name, node, f"step {step.number}: loops of its own over what is added")
        self.settle(step, node, name)

    def place_check(self, node: Node) -> None:
        """Loops of their own over indices: the program may have to stop after them. Many are looked at by all threads."""
        good, bad = node.results
        shape = self.forms[good].shape
        rows = math.prod(shape[:-1]) if math.prod(shape) >= MANY else 1
        domain = Domain(rows, math.prod(shape) // rows)
        step = Step(len(self.steps), domain, decided=True, shape=shape, check=bad)
        self.steps.append(step)
        place = unflattened(domain.flat, shape)
        index, wrong = looked_at(self.exprs, Reading(self, step).get(node.operands[0], place, ()), node.attrs)
        step.members[good] = Member(node, good, 0, "element", index)
        if rows == 1:
            step.members[bad] = Member(any_of(node), bad, 0, "total", wrong)
        else:
            of_row = f"{bad} of row"
            self.forms[of_row] = contiguous((rows,), self.forms[bad].dtype, self.forms[bad].where)
            step.members[of_row] = Member(any_of(node), of_row, 0, "total", wrong)
            step.members[bad] = Member(any_of(node), bad, 0, "down", self.exprs.total(of_row, "bool"))
        step.reads |= index.reads
        self.kept.add(bad)
        self.note(good, node, f"step {step.number}: a look at all indices, before they are used")
        for name in node.results:
            self.settle(step, node, name)

    # ---- what is not loops

    def place_special(self, node: Node) -> None:
        for x in node.values():
            self.reachable(x, node)
        step = Step(len(self.steps), None, node)
        for x in dict.fromkeys(node.values()):
            view = self.strided(x)
            if view is None:
                step.computed[x] = self.elements(x)
            else:
                step.views[x] = view
        step.domain = self.special(node, self)
        step.decided = True
        self.steps.append(step)
        for i, name in enumerate(node.results):
            self.home[name] = step.number
            if step.domain is None:
                self.turn(name)
            if step.domain is not None:
                step.members[name] = Member(node, name, i, "product")
        for x in node.values():
            for leaf in self.sources(x):
                step.reads.add(leaf)
                step.operands.add(leaf)
                if self.home.get(leaf) == -1:
                    self.readers[leaf] = max(self.readers.get(leaf, -1), step.number)
        self.note(", ".join(node.results), node, f"step {step.number}: a kernel of its own")

    def sources(self, x: str) -> set[str]:
        """The values in memory that an operand is read from or computed from. Unlike `leaves`, which are those of the time when
        it was seen through, these are what is there now."""
        found, stack = {x}, [x]
        while stack:
            name = stack.pop()
            if name in self.transparent:
                more = set(self.maker[name][0].values()) - found
                found |= more
                stack += more
        return found - self.transparent

    def turn(self, name: str) -> None:
        """A result whose readers all turn it the same way is written in the order in which they want it, as heads of attention
        are that become one row again."""
        readers = self.consumers.get(name, [])
        dims = {node.attrs["dims"] if node.op.name == "permute" else None for node in readers}
        if len(dims) != 1 or name in self.strides or name in self.kept:
            return
        (order,) = dims
        if order is None:
            return
        shape, steps, n = self.forms[name].shape, [0] * len(order), 1
        for d in reversed(order):
            steps[d] = n
            n *= max(shape[d], 1)
        self.strides[name] = tuple(steps)

    def reachable(self, x: str, node: Node) -> None:
        """An operand has to be in memory, if only as a view of something that is, or computed while it is read."""
        if x not in self.transparent or self.strided(x) is not None:
            return
        computing = self.gpu and node.op.name in PRODUCTS and self.special(node, self) is not None
        if computing and light(self.elements(x), self.forms[x].size, self.forms):
            return
        end = self.chains.end(x, False)
        if end in self.waiting and end in self.transparent:
            if self.computes(x, end, node):
                return
            self.materialise(end, f"{node.op.name} reads it")
            self.waiting.discard(end)
            if self.strided(x) is not None:
                return
        while self.maker[x][0].op.name == "permute" and self.maker[x][0].operands[0] in self.transparent:
            x = str(self.maker[x][0].operands[0])  # in its own order, in which it is written along rows and read as a view
        self.materialise(x, f"{node.op.name} reads it")

    def computes(self, x: str, end: str, node: Node) -> bool:
        """Whether a product computes an operand, which is a view of a value, while it packs it."""
        views = {y: self.strided(y) or (y, 0, self.layout(y)) for y in node.values() if y != x}
        readers = len(self.chains.ends(end))
        found = self.packing.verdict(
            node, x, self.elements(x), views, self.forms, readers, lambda leaf: self.stored_anyway(leaf, node)
        )
        if found is None:
            return False
        taken = bool(found.score > 0)
        how = "computes it while it packs it" if taken else "does not compute it while it packs it"
        self.decisions.append(f"{x}: {node.op.name} {node.results[0]} {how}, score {found.score:.0f} ns: {found.why}")
        return taken

    def stored_anyway(self, x: str, node: Node) -> bool:
        """Whether a value is in memory whether or not a product computes something from it: it is an input or handed out, or
        others read it, in another step or together with what is made after it."""
        home = self.home.get(x, -1)
        if home == -1 or x in self.kept or any(step.number != home and x in step.reads for step in self.steps):
            return True
        derived, later = {x}, {*node.results, *[name for name, at in self.home.items() if at > home]}
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
        """What a value is at any place: an expression of d0, d1 and so on."""
        return Reading(self, None).get(x, anywhere(self.forms[x].shape), ())

    def strided(self, x: str) -> View | None:
        """A value as a buffer, an offset and strides; None if it is no plain view of one."""
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
        """Put a value into memory that was not meant to be there."""
        node, which = self.maker[name]
        self.transparent.discard(name)
        self.repeated.add(name)
        self.decisions.append(f"{name}: in memory, as {why}")
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


def elsewhere(exprs: list[Expr], buffer: str, address: Index) -> bool:
    """Whether some expressions read a buffer at another place than an address."""
    return any(e.kind == "load" and e.data[0] == buffer and e.data[1] != address for e in walk(exprs))


def variables_of(shape: tuple[int, ...]) -> list[Var]:
    return [var(f"d{i}", n) for i, n in enumerate(shape)]


def anywhere(shape: tuple[int, ...]) -> Place:
    """A place whose coordinates are variables."""
    return tuple(atom(v) if v.size != 1 else ZERO for v in variables_of(shape))


def in_elements(form: Form) -> tuple[int, ...]:
    """Strides; of a field of a record they may be no whole number of elements."""
    if any(s % form.itemsize for s, n in zip(form.strides, form.shape, strict=True) if n > 1):
        raise GraphError(f"[compile] an array whose strides {form.strides} are no multiples of {form.itemsize} bytes")
    return tuple(s // form.itemsize for s in form.strides)


def reducible(node: Node, forms: dict[str, Any]) -> bool:
    x = node.operands[0]
    if not isinstance(x, str) or "dims" not in node.attrs:
        return False
    if forms[x].dtype.kind not in "fiub" and forms[x].dtype.itemsize != 2:
        return False
    return not (forms[x].size == 0 and node.op.name in ("amax", "amin"))
