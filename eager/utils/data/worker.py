"""DataLoader's workers: they fetch batches ahead, in order, and send errors back with their traceback.

They are processes, or threads of this process. Threads need no copies of the data on the way and start at once; they share
Python's lock, so they help where samples wait for files or NumPy. Both draw the same random numbers by this package's ops.
"""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...core.generator import default_generator

_PATIENCE = 5.0  # seconds between looks at whether the workers are still alive


class WorkerInfo(NamedTuple):
    """The result of `get_worker_info()` inside a worker."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None
_of_thread = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """Return this worker's information; None in the main process."""
    return getattr(_of_thread, "info", _info)


class Failure:
    """An exception on its way to the main process."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.kind, self.text = type(error), f"Caught {type(error).__name__} {where}.\nOriginal {traceback.format_exc()}"

    def reraise(self) -> None:
        try:
            error = self.kind(self.text)
        except Exception:  # an exception class with a constructor of its own
            error = RuntimeError(self.text)
        raise error


class End:
    """An iterable dataset has no more samples in this worker."""


def work(worker: int, count: int, dataset: Any, make_fetcher: Any, init: Any, tasks: Any, results: Any, kind: str) -> None:
    """A worker's life: begin an epoch, fetch batches, until there is nothing to do."""
    where = f"in DataLoader worker {kind} {worker}"
    if kind == "thread":
        default_generator.separate()
    fetch = None
    failed: Failure | None = None
    try:
        for task in iter(tasks.get, None):
            action, epoch, argument = task[0], task[1], task[2]
            if action == "begin":
                begin(WorkerInfo(worker, count, argument + worker, dataset), kind)
                try:
                    if init is not None:
                        init(worker)
                    fetch, failed = make_fetcher(dataset), None
                except Exception as error:
                    failed = Failure(error, where)
                continue
            number = task[3]
            if failed is not None:
                results.put((epoch, number, failed))
                continue
            try:
                payload: Any = fetch(argument)  # type: ignore[misc]
            except StopIteration:
                payload = End()
            except Exception as error:
                payload = Failure(error, where)
            results.put((epoch, number, payload))
    except KeyboardInterrupt:
        pass  # the main process gets one too, and says so


def begin(info: WorkerInfo, kind: str) -> None:
    """Seed a worker for an epoch. The states of `random` and `numpy.random` belong to all threads, so a thread leaves them
    alone; `get_worker_info().seed` is there for generators of one's own."""
    global _info
    default_generator.manual_seed(info.seed)
    if kind == "thread":
        _of_thread.info = info
        return
    random.seed(info.seed)
    np.random.seed(info.seed % 2**32)
    _info = info


class Channel(queue.SimpleQueue[Any]):
    """A queue to or from a thread."""

    def clear(self) -> None:
        """Forget what is still in it."""
        try:
            while True:
                self.get_nowait()
        except queue.Empty:
            pass


class Threads:
    """Stands where multiprocessing's contexts do, and makes threads."""

    kind = "thread"
    Queue = Channel
    Process = threading.Thread


class Pool:
    """The workers and the batches on their way."""

    def __init__(self, loader: Any, make_fetcher: Any) -> None:
        context: Any = loader.multiprocessing_context
        if context == "threads":
            context = Threads
        elif context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self.kind = getattr(context, "kind", "process")
        self.timeout, self.epoch = loader.timeout, 0
        self.results = context.Queue()
        self.tasks = [context.Queue() for _ in range(loader.num_workers)]
        self.processes = []
        for i, tasks in enumerate(self.tasks):
            arguments = (i, loader.num_workers, loader.dataset, make_fetcher, loader.worker_init_fn, tasks, self.results)
            process = context.Process(target=work, args=(*arguments, self.kind), daemon=True)
            with warnings.catch_warnings():  # Python warns of forking beside threads; NumPy's threads survive it
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            self.processes.append(process)

    def run(self, batches: Iterator[Any], seed: int, prefetch: int) -> Iterator[Any]:
        """The batches of one epoch in order, `prefetch` of them under way in each worker."""
        self.epoch += 1
        for tasks in self.tasks:
            tasks.put(("begin", self.epoch, seed))
        turns = itertools.cycle(range(len(self.tasks)))
        exhausted: set[int] = set()
        owner: dict[int, int] = {}
        arrived: dict[int, Any] = {}
        sent = itertools.count()

        def send() -> None:
            for _ in self.tasks:
                worker = next(turns)
                if worker in exhausted:
                    continue
                for batch in itertools.islice(batches, 1):
                    number = next(sent)
                    owner[number] = worker
                    self.tasks[worker].put(("fetch", self.epoch, batch, number))
                return

        for _ in range(prefetch * len(self.tasks)):
            send()
        wanted = 0
        while wanted in owner:
            while wanted not in arrived:
                epoch, number, payload = self.receive()
                if epoch == self.epoch:
                    arrived[number] = payload
            payload, worker = arrived.pop(wanted), owner.pop(wanted)
            wanted += 1
            if isinstance(payload, End):
                exhausted.add(worker)
                continue
            send()
            if isinstance(payload, Failure):
                payload.reraise()
            yield payload

    def receive(self) -> Any:
        waited = 0.0
        while True:
            patience = min(_PATIENCE, self.timeout - waited) if self.timeout else _PATIENCE
            try:
                return self.results.get(timeout=patience)
            except queue.Empty:
                waited += patience
                dead = [str(getattr(p, "pid", p.name)) for p in self.processes if not p.is_alive()]
                if dead:
                    raise RuntimeError(f"DataLoader worker (pid(s) {', '.join(dead)}) exited unexpectedly") from None
                if self.timeout and waited >= self.timeout:
                    raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds") from None

    def close(self) -> None:
        for tasks in self.tasks:
            if self.kind == "thread":
                tasks.clear()  # a thread cannot be ended from outside: it finishes the sample at hand and sees the None
            tasks.put(None)
        for process in self.processes:
            process.join(timeout=0.5)
            if process.is_alive() and self.kind == "process":
                process.terminate()
                process.join()
        for channel in (*self.tasks, self.results) if self.kind == "process" else ():
            channel.cancel_join_thread()
            channel.close()
