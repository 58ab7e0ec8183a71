"""Samples in arrival order with the truth about them, and the orders; only `evaluate` reads the truth.

    order(is_id, source, kind="temporal", seed=3) -> int64 indices into the samples

`source` is the class of a known (ID) sample and the data set of an unknown (OOD) one. An order may leave samples out
(a mixture, a long tail); only `temporal` repeats some: every stage has all known samples. ORDERS names them all;
id_first and ood_first are the field's names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from unseen.errors import DataError, SettingError


@dataclass(frozen=True)
class Trial:
    """Samples in arrival order with the truth about them. Features go to the detector, the rest stays here."""

    z: Float[Tensor, "T d"]
    label: Int[Tensor, " T"]  # index of the true known name, -1 for a sample that has none
    source: Int[Tensor, " T"]  # index into `sources`: where the sample comes from
    sources: tuple[str, ...]
    stages: Int[Tensor, " T"] | None = None  # of a temporal order, None in all others

    @property
    def is_id(self) -> Bool[Tensor, " T"]:
        """Which samples belong to a known name."""
        return self.label >= 0

    @property
    def stage(self) -> Int[Tensor, " T"]:
        """The stage of a temporal order to which each sample belongs, 0 in all others."""
        return torch.zeros_like(self.label) if self.stages is None else self.stages

    def arrival(self, kind: str, seed: int, **options: object) -> Int[Tensor, " S"]:
        """The indices of the samples in the arrival order named `kind` (see ORDERS)."""
        return order(self.is_id, self._class_or_set, kind=kind, seed=seed, **options)

    @property
    def _class_or_set(self) -> Int[Tensor, " T"]:
        # a long tail is over known classes, a temporal shift over unknown sets
        return torch.where(self.is_id, self.label, self.source)

    def ordered(self, kind: str, seed: int, **options: object) -> Trial:
        """The trial in the arrival order named `kind`."""
        return self[self.arrival(kind, seed, **options)]

    def held_out(self) -> tuple[Trial, Trial]:
        """The first half of each known class, to fit what needs ID images, and all the rest."""
        kept = torch.ones(len(self.z), dtype=torch.bool)
        for label in self.label[self.is_id].unique():
            members = (self.label == label).nonzero().squeeze(1)
            kept[members[: len(members) // 2]] = False
        return self[(~kept).nonzero().squeeze(1)], self[kept.nonzero().squeeze(1)]

    def __getitem__(self, order: Int[Tensor, " S"]) -> Trial:
        stage = self.stage[order] + stages(self.is_id, self._class_or_set, order)
        return Trial(self.z[order], self.label[order], self.source[order], self.sources, stage)


Order = Callable[..., Int[Tensor, " n"]]


def order(
    is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, kind: str = "shuffled", seed: int = 0, **options: object
) -> Int[Tensor, " n"]:
    """The arrival order named `kind`; `options` go to the function of that name.

    >>> order(torch.tensor([True, False, True]), torch.tensor([0, 0, 1]), kind="ood_first").tolist()[0]
    1
    """
    if kind not in ORDERS:
        raise SettingError(f"expected an order out of {', '.join(ORDERS)}, got {kind!r}; choose one of them")
    if is_id.ndim != 1 or is_id.dtype != torch.bool or source.shape != is_id.shape or source.is_floating_point():
        raise DataError(
            "expected one boolean is_id and one integer source per sample, "
            f"got {is_id.dtype} {list(is_id.shape)} and {source.dtype} {list(source.shape)}; "
            "pass two vectors of one length"
        )
    return ORDERS[kind](is_id.cpu(), source.cpu(), seed=seed, **options)


def shuffled(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " T"]:
    """Every sample in random order."""
    return torch.randperm(len(is_id), generator=_generator(seed))


def id_first(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " T"]:
    """All ID samples, then all OOD samples, each side in random order."""
    return _sides(is_id, seed=seed, known_first=True)


def ood_first(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " T"]:
    """All OOD samples, then all ID samples, each side in random order."""
    return _sides(is_id, seed=seed, known_first=False)


def id_then_mixed(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " T"]:
    """Half of the ID samples, then the others and all OOD samples shuffled."""
    return _half_then_mixed(is_id, is_id, seed)


def ood_then_mixed(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " T"]:
    """Half of the OOD samples, then the others and all ID samples shuffled."""
    return _half_then_mixed(is_id, ~is_id, seed)


def temporal(
    is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int, sets: Sequence[int] | None = None
) -> Int[Tensor, " n"]:
    """One stage per OOD set, in the order of `sets`: all ID samples shuffled with that set.

    This is the protocol of the paper's table on temporal shift: the state is kept, and each stage is judged by its own
    samples (`stages`).
    """
    generator, known = _generator(seed), is_id.nonzero().squeeze(1)
    parts = [torch.cat([known, (~is_id & (source == one)).nonzero().squeeze(1)]) for one in _sets(is_id, source, sets)]
    return torch.cat([_shuffle(part, generator) for part in parts]) if parts else _shuffle(known, generator)


def stages(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], indices: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The stage of each sample of a `temporal` order; all are in stage 0 where no sample comes twice."""
    if len(indices.unique()) == len(indices):
        return torch.zeros_like(indices)
    known, seen, sets = is_id[indices].tolist(), Counter[int](), dict[int, int]()
    found = []
    for index, is_known in zip(indices.tolist(), known, strict=True):
        if is_known:  # one time in each stage
            found.append(seen[index])
            seen[index] += 1
        else:
            found.append(sets.setdefault(int(source[index]), len(sets)))
    return torch.tensor(found)


def bursts(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " T"]:
    """One ID class after another, in random order, with the OOD samples spread evenly between them."""
    generator = _generator(seed)
    classes = _shuffle(torch.tensor(_distinct(source[is_id]), dtype=torch.int64), generator)
    blocks = [_shuffle((is_id & (source == one)).nonzero().squeeze(1), generator) for one in classes]
    unknown = _shuffle((~is_id).nonzero().squeeze(1), generator)
    return _interleaved(torch.cat([*blocks, unknown[:0]]), unknown)


def mixture(
    is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int, ood_share: float = 0.5
) -> Int[Tensor, " n"]:
    """The largest random subset of which `ood_share` is OOD, in random order."""
    if not 0 <= ood_share <= 1:
        raise SettingError(f"expected ood_share in [0, 1], got {ood_share!r}; 0.5 takes as many of both")
    generator = _generator(seed)
    known = _shuffle(is_id.nonzero().squeeze(1), generator)
    unknown = _shuffle((~is_id).nonzero().squeeze(1), generator)
    wanted = [(len(known), 1 - ood_share), (len(unknown), ood_share)]
    total = min(count / share for count, share in wanted if share > 0)
    known, unknown = known[: round(total * (1 - ood_share))], unknown[: round(total * ood_share)]
    return _shuffle(torch.cat([known, unknown]), generator)


def mostly_id(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " n"]:
    """The largest random subset with ten ID samples for each OOD sample, in random order."""
    return mixture(is_id, source, seed=seed, ood_share=1 / 11)


def mostly_ood(is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int) -> Int[Tensor, " n"]:
    """The largest random subset with ten OOD samples for each ID sample, in random order."""
    return mixture(is_id, source, seed=seed, ood_share=10 / 11)


def long_tail(
    is_id: Bool[Tensor, " T"], source: Int[Tensor, " T"], *, seed: int, ratio: float = 100.0
) -> Int[Tensor, " n"]:
    """All OOD samples and fewer and fewer of each ID class, in random order.

    The classes are ranked at random; the first keeps everything, the last one part in `ratio`, and those between lie
    on the exponential curve that joins the two. Every class keeps at least one sample.
    """
    if not ratio >= 1:
        raise SettingError(f"expected ratio of at least 1, got {ratio!r}; 100 is a common choice")
    generator = _generator(seed)
    classes = _shuffle(torch.tensor(_distinct(source[is_id]), dtype=torch.int64), generator)
    kept = [(~is_id).nonzero().squeeze(1)]
    for share, label in zip(_tail(len(classes), ratio), classes, strict=True):
        members = _shuffle((is_id & (source == label)).nonzero().squeeze(1), generator)
        kept.append(members[: max(1, round(float(share) * len(members)))])
    return _shuffle(torch.cat(kept), generator)


ORDERS: dict[str, Order] = {
    "shuffled": shuffled,
    "id_first": id_first,
    "ood_first": ood_first,
    "id_then_mixed": id_then_mixed,
    "ood_then_mixed": ood_then_mixed,
    "temporal": temporal,
    "bursts": bursts,
    "mixture": mixture,
    "mostly_id": mostly_id,
    "mostly_ood": mostly_ood,
    "long_tail": long_tail,
}


def _generator(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def _distinct(source: Tensor) -> list[int]:
    return sorted(set(source.tolist()))


def _shuffle(items: Tensor, generator: Generator) -> Tensor:
    return items[torch.randperm(len(items), generator=generator)]


def _sides(is_id: Tensor, *, seed: int, known_first: bool) -> Tensor:
    generator = _generator(seed)
    known = _shuffle(is_id.nonzero().squeeze(1), generator)
    unknown = _shuffle((~is_id).nonzero().squeeze(1), generator)
    return torch.cat([known, unknown] if known_first else [unknown, known])


def _half_then_mixed(is_id: Tensor, first: Tensor, seed: int) -> Tensor:
    generator = _generator(seed)
    early = _shuffle(first.nonzero().squeeze(1), generator)
    early = early[: len(early) // 2]
    late = torch.ones_like(is_id)
    late[early] = False
    return torch.cat([early, _shuffle(late.nonzero().squeeze(1), generator)])


def _sets(is_id: Tensor, source: Tensor, sets: Sequence[int] | None) -> list[int]:
    present = _distinct(source[~is_id])
    chosen = present if sets is None else list(sets)
    if sorted(chosen) != present:
        raise SettingError(f"expected every OOD set once out of {present}, got {chosen}; put them in any order")
    return chosen


def _interleaved(first: Tensor, second: Tensor) -> Tensor:
    """Both in their own order, each spread evenly over the whole."""
    when = [(torch.arange(len(part)).double() + 0.5) / max(len(part), 1) for part in (first, second)]
    return torch.cat([first, second])[torch.cat(when).argsort(stable=True)]


def _tail(classes: int, ratio: float) -> Float[Tensor, " C"]:
    return ratio ** -torch.linspace(0, 1, classes, dtype=torch.float64)
