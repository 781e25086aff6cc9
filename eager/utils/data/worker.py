"""DataLoader's worker processes: they fetch batches ahead, in order, and send errors back with their traceback."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...random import manual_seed

_PATIENCE = 5.0  # seconds between looks at whether the workers are still alive


class WorkerInfo(NamedTuple):
    """What `get_worker_info()` tells inside a worker."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Which worker this is; None in the main process."""
    return _info


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


def work(worker: int, count: int, dataset: Any, make_fetcher: Any, init: Any, tasks: Any, results: Any) -> None:
    """A worker's life: begin an epoch, fetch batches, until there is nothing to do."""
    global _info
    fetch = None
    failed: Failure | None = None
    try:
        for task in iter(tasks.get, None):
            kind, epoch, argument = task[0], task[1], task[2]
            if kind == "begin":
                seed = argument + worker
                random.seed(seed)
                np.random.seed(seed % 2**32)
                manual_seed(seed)
                _info = WorkerInfo(worker, count, seed, dataset)
                try:
                    if init is not None:
                        init(worker)
                    fetch, failed = make_fetcher(dataset), None
                except Exception as error:
                    failed = Failure(error, f"in DataLoader worker process {worker}")
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
                payload = Failure(error, f"in DataLoader worker process {worker}")
            results.put((epoch, number, payload))
    except KeyboardInterrupt:
        pass  # the main process gets one too, and says so


class Pool:
    """Worker processes and the batches on their way."""

    def __init__(self, loader: Any, make_fetcher: Any) -> None:
        context: Any = loader.multiprocessing_context
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self.timeout, self.epoch = loader.timeout, 0
        self.results = context.Queue()
        self.tasks = [context.Queue() for _ in range(loader.num_workers)]
        self.processes = []
        for i, tasks in enumerate(self.tasks):
            arguments = (i, loader.num_workers, loader.dataset, make_fetcher, loader.worker_init_fn, tasks, self.results)
            process = context.Process(target=work, args=arguments, daemon=True)
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
                dead = [p.pid for p in self.processes if not p.is_alive()]
                if dead:
                    pids = ", ".join(str(p) for p in dead)
                    raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from None
                if self.timeout and waited >= self.timeout:
                    raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds") from None

    def close(self) -> None:
        for tasks in self.tasks:
            tasks.put(None)
        for process in self.processes:
            process.join(timeout=0.5)
            if process.is_alive():
                process.terminate()
                process.join()
        for channel in (*self.tasks, self.results):
            channel.cancel_join_thread()
            channel.close()
