"""`DataLoader`: batches from a dataset, shuffled and fetched ahead by workers if wanted, reproducible by seed."""

from __future__ import annotations

import functools
import itertools
import multiprocessing.context
from collections.abc import Iterator
from typing import Any

from ...ops.random import randint
from .collate import default_collate, default_convert
from .dataset import IterableDataset, Subset, TensorDataset
from .sampler import BatchSampler, RandomSampler, SequentialSampler
from .worker import Pool


class DataLoader:
    """Iterate over batches of a dataset. Arguments, defaults and errors are PyTorch's.

    Beyond them, `multiprocessing_context="threads"` makes the workers threads of this process instead of processes.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        iterable = isinstance(dataset, IterableDataset)
        _check(num_workers, timeout, prefetch_factor, persistent_workers)
        _check_context(multiprocessing_context, num_workers)
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader with IterableDataset: expected unspecified shuffle, sampler and batch_sampler options")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
            batch_size, drop_last = None, False
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if sampler is None and not iterable:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(itertools.repeat(0) if iterable else sampler, batch_size, drop_last)
        self.dataset, self.batch_size, self.sampler, self.batch_sampler = dataset, batch_size, sampler, batch_sampler
        self.num_workers, self.pin_memory, self.drop_last, self.timeout = num_workers, pin_memory, drop_last, timeout
        self.worker_init_fn, self.multiprocessing_context, self.generator = worker_init_fn, multiprocessing_context, generator
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.persistent_workers = persistent_workers
        self.collate_fn = collate_fn or (default_convert if batch_sampler is None else default_collate)
        self._pool: Pool | None = None

    def __iter__(self) -> Iterator[Any]:
        seed = int(randint(0, 2**62, (1,), generator=self.generator).item())
        make_fetcher = functools.partial(
            fetcher, collate=self.collate_fn, batched=self.batch_sampler is not None, drop_last=self.drop_last
        )
        if self.num_workers == 0:
            return self._here(make_fetcher(self.dataset))
        return self._by_workers(make_fetcher, seed)

    def _requests(self) -> Iterator[Any]:
        """Yield the indices of each batch: lists, or single ones without batches."""
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        return itertools.repeat(None) if self.sampler is None else iter(self.sampler)

    def _here(self, fetch: Any) -> Iterator[Any]:
        for request in self._requests():
            try:
                batch = fetch(request)
            except StopIteration:
                return
            yield batch

    def _by_workers(self, make_fetcher: Any, seed: int) -> Iterator[Any]:
        pool = self._pool or Pool(self, make_fetcher)
        self._pool = pool if self.persistent_workers else None
        try:
            yield from pool.run(self._requests(), seed, self.prefetch_factor or 2)
        finally:
            if not self.persistent_workers:
                pool.close()

    def __len__(self) -> int:
        if not isinstance(self.dataset, IterableDataset):
            return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        count = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None:
            self._pool.close()  # type: ignore[union-attr]


def _check(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor option could only be specified in multiprocessing: let num_workers > 0")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError("prefetch_factor option should be positive")
    if num_workers == 0 and persistent_workers:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_context(context: Any, num_workers: int) -> None:
    if context is None:
        return
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got num_workers=0"
        )
    if not isinstance(context, (str, multiprocessing.context.BaseContext)):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, but got "
            f"multiprocessing_context={context}"
        )
    methods = [*multiprocessing.get_all_start_methods(), "threads"]
    if isinstance(context, str) and context not in methods:
        raise ValueError(
            f"multiprocessing_context option should specify a valid start method in {methods}, but got "
            f"multiprocessing_context='{context}'"
        )


def fetcher(dataset: Any, collate: Any, batched: bool, drop_last: bool) -> Any:
    """A function from what was requested to a batch; StopIteration when an iterable dataset has no more."""
    if isinstance(dataset, IterableDataset):
        return _iterable_fetcher(iter(dataset), collate, batched, drop_last)
    if not batched:
        return lambda index: collate(dataset[index])
    if collate is default_collate and (tensors := plain_tensors(dataset)) is not None:
        return tensors
    if hasattr(dataset, "__getitems__"):
        return lambda indices: collate(dataset.__getitems__(indices))
    return lambda indices: collate([dataset[i] for i in indices])


def plain_tensors(dataset: Any) -> Any:
    """Batches of a TensorDataset, or of a Subset of one, are one lookup in each tensor; nothing to stack."""
    if type(dataset) is TensorDataset:
        return lambda indices: [t[indices] for t in dataset.tensors]
    if type(dataset) is Subset and (inner := plain_tensors(dataset.dataset)) is not None:
        return lambda indices: inner([dataset.indices[i] for i in indices])
    return None


def _iterable_fetcher(samples: Iterator[Any], collate: Any, batched: bool, drop_last: bool) -> Any:
    def fetch(request: Any) -> Any:
        if not batched:
            return collate(next(samples))
        batch = list(itertools.islice(samples, len(request)))
        if not batch or (drop_last and len(batch) < len(request)):
            raise StopIteration
        return collate(batch)

    return fetch
