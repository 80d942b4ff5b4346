# SPDX-License-Identifier: Apache-2.0
"""What a MinibatchSampler gives, as samples that are loaded and collated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

Microbatch = list[int]
"""Indices of samples."""
Costed = tuple[Microbatch, float]
"""A microbatch and its cost."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Source:
    """What a loader calls of its sampler."""

    samples: int  # of the dataset
    length: Callable[[], int]  # minibatches of an epoch
    begin: Callable[[Iterable[Any]], Iterator[Any]]  # an iteration with these: what is taken counts as delivered
    ahead: Callable[[], Iterator[list[Microbatch]]]  # the minibatches of the iteration; taking them counts for nothing
    # The minibatches of MinibatchSampler.claims, each turned by the last argument into values with their costs.
    claims: Callable[[Any, Any, Callable[[Iterator[Costed]], Iterator[tuple[Any, float]]]], Iterator[Iterator[Any]]]


class _Ahead:
    """The sampler for a DataLoader: prefetching does not count as delivering."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[Microbatch]]:
        return self._source.ahead()

    def __len__(self) -> int:
        return self._source.length()


class _Microbatches:
    """A dataset whose "samples" are collated microbatches, so that workers collate, too."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate_fn

    def __getitem__(self, microbatch: Microbatch) -> Any:
        fetch = getattr(self._dataset, "__getitems__", None)
        return self._collate(fetch(microbatch) if fetch else [self._dataset[index] for index in microbatch])


class MinibatchLoader:
    """Made by MinibatchSampler.loader. Iterating gives minibatches: lists, perhaps empty, of this rank's collated
    microbatches. The sampler's state counts those that were delivered to the loop, not those loaded ahead."""

    def __init__(
        self,
        source: Source,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any],
        dataloader_options: dict[str, Any],
    ) -> None:
        mine = {
            "batch_size",
            "shuffle",
            "sampler",
            "batch_sampler",
            "drop_last",
            "in_order",
        } & dataloader_options.keys()
        if mine:
            raise ValueError(f"{', '.join(sorted(mine))}: the MinibatchSampler decides that; leave it out")
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise ValueError(f"{type(dataset).__name__} has no indices; a dataset with __getitem__ is needed")
        if hasattr(dataset, "__len__") and len(dataset) != source.samples:
            raise ValueError(f"the dataset has {len(dataset)} samples, the sampler {source.samples} lengths")
        self._source = source
        microbatches: Any = _Microbatches(dataset, collate_fn)
        self._microbatches = microbatches
        self.microbatch: Microbatch = []
        """The indices of what claims() has given last, as MinibatchSampler.seed_of takes them."""
        self._loader: DataLoader[Any] = DataLoader(
            microbatches, batch_sampler=_Ahead(source), collate_fn=list, **dataloader_options
        )

    def __iter__(self) -> Iterator[list[Any]]:
        return self._source.begin(self._loader)

    def __len__(self) -> int:
        """Minibatches of an epoch."""
        return self._source.length()

    def claims(self, job: Any, repeat: Sequence[Sequence[Microbatch]] | None = None) -> Iterator[Iterator[Any]]:
        """As MinibatchSampler.claims, of collated microbatches. While the loop computes one, a thread claims and loads
        the next; the DataLoader's workers are for iterating only."""
        minibatches = self._source.claims(job, repeat, lambda minibatch: _one_ahead(self._loaded(minibatch)))
        return (self._noted(minibatch) for minibatch in minibatches)

    def _loaded(self, minibatch: Iterator[Costed]) -> Iterator[tuple[tuple[Microbatch, Any], float]]:
        return (((one, self._microbatches[one]), cost) for one, cost in minibatch)

    def _noted(self, microbatches: Iterator[tuple[Microbatch, Any]]) -> Iterator[Any]:
        for self.microbatch, batch in microbatches:
            yield batch


def _one_ahead(values: Iterator[_T]) -> Iterator[_T]:
    """The next value is made by a thread while the last one is used."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        pending: Future[Any] = thread.submit(next, values, end)
        while (value := pending.result()) is not end:
            pending = thread.submit(next, values, end)
            yield value
