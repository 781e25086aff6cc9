"""Datasets, samplers and the DataLoader, in this process and in workers."""

import gc
import os
import threading
import time

import numpy as np
import pytest
import tapejit as tj
from tapejit.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)


class Squares(Dataset):
    def __init__(self, count=10):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"i": i, "square": tj.tensor(float(i * i)), "name": str(i)}


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, 10, step))


class Failing(Squares):
    def __getitem__(self, i):
        if i == 7:
            raise KeyError("seven")
        return i


class Dying(Squares):
    def __getitem__(self, i):
        if i == 3:
            os._exit(1)
        return i


class Noise(Squares):
    def __getitem__(self, i):
        return tj.rand(1)


PROCESSES = {"num_workers": 2}
THREADS = {"num_workers": 2, "multiprocessing_context": "threads"}


def data():
    return TensorDataset(tj.arange(50).float().reshape(25, 2), tj.arange(25))


def test_batches_in_order_with_the_rest():
    batches = list(DataLoader(data(), batch_size=10))
    assert [b[1].tolist() for b in batches] == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert batches[2][0].shape == (5, 2)
    assert len(DataLoader(data(), batch_size=10)) == 3
    assert (
        len(DataLoader(data(), batch_size=10, drop_last=True))
        == len(list(DataLoader(data(), batch_size=10, drop_last=True)))
        == 2
    )


WORKERS = pytest.mark.parametrize("workers", [{}, PROCESSES, THREADS], ids=["here", "processes", "threads"])
POOLS = pytest.mark.parametrize("workers", [PROCESSES, THREADS], ids=["processes", "threads"])


@WORKERS
def test_shuffling_repeats_with_the_seed_and_loses_nothing(workers):
    def epoch(seed):
        tj.manual_seed(seed)
        return [i for b in DataLoader(data(), batch_size=4, shuffle=True, **workers) for i in b[1].tolist()]

    assert epoch(1) == epoch(1) != epoch(2)
    assert sorted(epoch(1)) == list(range(25))


def test_a_generator_of_its_own():
    def epoch():
        loader = DataLoader(data(), batch_size=5, shuffle=True, generator=tj.Generator().manual_seed(3))
        return [b[1].tolist() for b in loader]

    assert epoch() == epoch()


def test_dicts_numbers_and_strings_are_collated():
    batch = next(iter(DataLoader(Squares(), batch_size=3)))
    assert batch["i"].tolist() == [0, 1, 2] and batch["i"].dtype is tj.int64
    assert batch["square"].tolist() == [0.0, 1.0, 4.0] and batch["name"] == ["0", "1", "2"]


def test_default_collate():
    assert default_collate([1.5, 2.5]).dtype is tj.float64
    assert default_collate([np.ones(2, np.float32)] * 3).shape == (3, 2)
    first, second = default_collate([(1, [tj.ones(2)]), (2, [tj.ones(2)])])
    assert first.tolist() == [1, 2] and second[0].shape == (2, 2)
    assert default_collate(["a", "b"]) == ["a", "b"] and default_collate([(1, "a"), (2, "b")])[1] == ("a", "b")
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="default_collate"):
        default_collate([object()])


def test_without_batches():
    assert [b.tolist() if isinstance(b, tj.Tensor) else b for b in DataLoader([1, 2, 3], batch_size=None)] == [1, 2, 3]


@WORKERS
def test_iterable_datasets(workers):
    loader = DataLoader(Stream(), batch_size=3, **workers)
    assert sorted(i for b in loader for i in b.tolist()) == list(range(10))
    assert sorted(i for b in loader for i in b.tolist()) == list(range(10))
    full = DataLoader(Stream(), batch_size=3, **workers, drop_last=True)
    assert all(len(b) == 3 for b in full)


@WORKERS
def test_errors_reach_the_caller(workers):
    seen = []
    with pytest.raises(KeyError, match="seven") as caught:
        for batch in DataLoader(Failing(), batch_size=2, **workers):
            seen += batch.tolist()
    assert seen == [0, 1, 2, 3, 4, 5]
    if workers:
        kind = "thread" if workers is THREADS else "process"
        assert f"in DataLoader worker {kind} 1" in str(caught.value) and "__getitem__" in str(caught.value)


def test_a_dead_worker_is_an_error(monkeypatch):
    monkeypatch.setattr("tapejit.eager.utils.data.worker._PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(DataLoader(Dying(), batch_size=1, num_workers=1))


class Slow(Squares):
    def __getitem__(self, i):
        time.sleep(60)


def test_timeout():
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        list(DataLoader(Slow(), num_workers=1, timeout=0.3))


class Waiting(Squares):
    go_on = threading.Event()

    def __getitem__(self, i):
        self.go_on.wait(60)
        return i


def test_timeout_of_threads():
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        list(DataLoader(Waiting(), timeout=0.3, **THREADS))
    Waiting.go_on.set()


def draw(workers):
    tj.manual_seed(5)
    drawn = [b.item() for b in DataLoader(Noise(8), batch_size=1, **workers)]
    return [*drawn, tj.rand(1).item()]


@POOLS
def test_workers_draw_different_numbers_and_repeat_with_the_seed(workers):
    assert draw(workers) == draw(workers) and len(set(draw(workers))) == 9


def test_threads_draw_the_numbers_of_processes():
    assert draw(THREADS) == draw(PROCESSES)


class Slowly(Squares):
    def __getitem__(self, i):
        time.sleep(0.02 * (4 - i % 4))
        return i


def test_threads_fetch_ahead_and_keep_the_order():
    start = time.perf_counter()
    loader = DataLoader(Slowly(16), batch_size=1, num_workers=8, multiprocessing_context="threads")
    assert [b.item() for b in loader] == list(range(16))
    assert time.perf_counter() - start < 0.02 * 2.5 * 16


def test_threads_end_with_the_epoch():
    def alive():
        return sum(thread.name.startswith("Thread-") for thread in threading.enumerate())

    before = alive()
    for _ in DataLoader(Squares(100), **THREADS):
        break
    gc.collect()
    assert alive() == before
    loader = DataLoader(Squares(4), persistent_workers=True, **THREADS)
    assert len(list(loader)) == len(list(loader)) == 4 and alive() == before + 2
    del loader
    gc.collect()
    assert alive() == before


class Leaving(Squares):
    def __getitem__(self, i):
        raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_an_error(monkeypatch):
    monkeypatch.setattr("tapejit.eager.utils.data.worker._PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(DataLoader(Leaving(), **THREADS))


def test_threads_know_which_they_are_and_share_the_dataset():
    dataset = Known(4)
    assert [b.item() for b in DataLoader(dataset, **THREADS)] == [0, 1, 0, 1]
    assert dataset.seen == 4 and get_worker_info() is None


class Known(Squares):
    seen = 0

    def __getitem__(self, i):
        self.seen += 1
        info = get_worker_info()
        assert info.dataset is self and info.num_workers == 2
        return info.id


def init(worker):
    global initialised
    initialised = worker


class Initialised(Squares):
    def __getitem__(self, i):
        return initialised


def test_worker_init_and_persistent_workers():
    loader = DataLoader(Initialised(4), batch_size=1, num_workers=2, worker_init_fn=init, persistent_workers=True)
    assert [b.item() for b in loader] == [0, 1, 0, 1]
    pids = [p.pid for p in loader._pool.processes]
    for _ in loader:
        break  # an epoch left early does not disturb the next
    assert [b.item() for b in loader] == [0, 1, 0, 1]
    assert pids == [p.pid for p in loader._pool.processes]


def test_subset_concat_chain_and_split():
    subset = Subset(data(), [3, 5, 7])
    assert [b[1].tolist() for b in DataLoader(subset, batch_size=2)] == [[3, 5], [7]]
    both = Squares(3) + Squares(4)
    assert isinstance(both, ConcatDataset) and len(both) == 7 and both[3]["i"] == 0 and both[-1]["i"] == 3
    assert list(ChainDataset([Stream(), Stream()])) == list(range(10)) * 2
    parts = random_split(range(10), [0.7, 0.3], tj.Generator().manual_seed(0))
    assert [len(p) for p in parts] == [7, 3] and sorted(p[i] for p in parts for i in range(len(p))) == list(range(10))
    with pytest.raises(ValueError, match="does not equal"):
        random_split(range(10), [3, 3])


def test_samplers():
    assert sorted(RandomSampler(range(5))) == list(range(5))
    assert len(list(RandomSampler(range(5), num_samples=12))) == 12
    assert set(RandomSampler(range(5), replacement=True, num_samples=50)) <= set(range(5))
    assert sorted(SubsetRandomSampler([4, 2])) == [2, 4]
    assert set(WeightedRandomSampler([0.0, 1.0, 0.0], 5)) == {1}
    assert list(BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]]
    assert [b.tolist() for b in DataLoader(range(6), batch_sampler=[[5, 0], [1]])] == [[5, 0], [1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": [0], "shuffle": True}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive with batch_size"),
        ({"batch_size": 0}, "batch_size should be a positive integer"),
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"prefetch_factor": 2}, "num_workers > 0"),
        ({"persistent_workers": True}, "num_workers > 0"),
        ({"multiprocessing_context": "threads"}, "num_workers > 0"),
        ({"multiprocessing_context": "fibres", "num_workers": 1}, "valid start method in .*threads.*, but got .*'fibres'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(range(3), **arguments)


def test_distributed_sampler():
    from tapejit.utils.data.distributed import DistributedSampler

    parts = [list(DistributedSampler(range(10), 3, rank, shuffle=False)) for rank in range(3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert [list(DistributedSampler(range(10), 3, r, shuffle=False, drop_last=True)) for r in (0, 2)] == [[0, 3, 6], [2, 5, 8]]
    shuffled = [DistributedSampler(range(8), 2, rank, seed=1) for rank in range(2)]
    first = [list(s) for s in shuffled]
    assert sorted(first[0] + first[1]) == list(range(8)) and [list(s) for s in shuffled] == first
    for s in shuffled:
        s.set_epoch(1)
    assert [list(s) for s in shuffled] != first and len(shuffled[0]) == 4
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedSampler(range(4))
    with pytest.raises(ValueError, match="Invalid rank 2"):
        DistributedSampler(range(4), 2, 2)
