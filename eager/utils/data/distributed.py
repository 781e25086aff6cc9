"""A sampler for several processes that share a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from ... import distributed
from ...core.generator import Generator
from ...ops.random import randperm
from .sampler import Sampler


class DistributedSampler(Sampler[int]):
    """The part of the indices that one of `num_replicas` processes works on; `set_epoch` shuffles them anew, alike in all."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        count = distributed.get_world_size() if num_replicas is None else num_replicas
        mine = distributed.get_rank() if rank is None else rank
        if not 0 <= mine < count:
            raise ValueError(f"Invalid rank {mine}, rank should be in the interval [0, {count - 1}]")
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, count, mine, 0
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.num_samples = len(dataset) // count if drop_last else -(-len(dataset) // count)
        self.total_size = self.num_samples * count

    def __iter__(self) -> Iterator[int]:
        indices: list[int] = list(range(len(self.dataset)))
        if self.shuffle:
            indices = randperm(len(self.dataset), generator=Generator().manual_seed(self.seed + self.epoch)).tolist()
        while len(indices) < self.total_size and indices:  # all processes get as many
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order: another one for each epoch."""
        self.epoch = epoch
