"""A few labelled images of known names, seen before a stream starts. No image of a stream is ever among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.errors import DataError

if TYPE_CHECKING:
    from unseen.features import Features
    from unseen.labels.space import LabelSpace


@dataclass(frozen=True)
class ExampleNumbers:
    """What is taken for one image, for too many of a name, and how many are spared."""

    unit_tolerance: float = 1e-2  # float16 vectors on disk are unit to about 1e-3
    same_image: float = 0.9999  # cosine from which two images count as one
    balance: float = 5.0  # times as many examples as other names have on average, and one, that a name may have
    shrinkage: float = 0.7  # share of the variation within names that is taken to be the same in all directions
    tiny: float = 1e-12  # floor of a variance: every image is the same
    block: int = 1024  # examples compared with all at a time
    teaching: int = 1  # examples of a name that teach before any is spared for the threshold
    spared_one_of: int = 8  # examples of a name that has many
    most_spared: int = 200  # in all: they are scored again and again, and more hardly help


NUMBERS = ExampleNumbers()


class Division(NamedTuple):
    """Examples that teach, and examples that were left out."""

    kept: Examples
    left_out: Examples


@dataclass(frozen=True, eq=False)
class Examples:
    """Features of labelled images; `label` is the index of the known name of each.

    This is the only way in which labels of images reach a detector: through its label space, before the first sample.
    """

    z: Float[Tensor, "n d"]
    label: Int[Tensor, " n"]
    keys: tuple[str, ...] = ()
    encoder: str = ""  # fingerprint, where it is known

    def __post_init__(self) -> None:
        """Check everything once and keep exactly unit rows."""
        if self.z.ndim != 2 or self.label.shape != self.z.shape[:1] or self.label.is_floating_point():
            raise DataError(
                "expected examples as features [n, d] and one index of a known name for each, got shapes "
                f"{list(self.z.shape)} and {list(self.label.shape)} ({self.label.dtype}); pass both from one file"
            )
        z = self.z.detach().float()
        norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        if not bool(((norm - 1).abs() <= NUMBERS.unit_tolerance).all()):
            raise DataError("expected unit features of examples, got others; use torch.nn.functional.normalize")
        # rows that are unit to rounding stay as they are: else a saved space would load with another fingerprint
        is_exact = (norm - 1).abs() <= 8 * torch.finfo(z.dtype).eps
        object.__setattr__(self, "z", torch.where(is_exact, z, z / norm))

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, rows: Bool[Tensor, " n"]) -> Examples:
        """The examples at which `rows` is true."""
        keys = tuple(key for key, kept in zip(self.keys, rows.tolist(), strict=True) if kept) if self.keys else ()
        return replace(self, z=self.z[rows], label=self.label[rows], keys=keys)

    def counts(self, names: int) -> Int[Tensor, " K"]:
        """How many examples each of `names` names has."""
        return torch.bincount(self.label, minlength=names)

    @cached_property
    def mean(self) -> Float[Tensor, " d"]:
        """The mean example."""
        return self.z.double().mean(0)

    @property
    def place(self) -> Int[Tensor, " n"]:
        """For each example how many of the same name stand before it."""
        order = self.label.argsort(stable=True)
        counts = self.counts(int(self.label.max()) + 1)
        first = (counts.cumsum(0) - counts)[self.label[order]]
        place = torch.empty_like(self.label)
        place[order] = torch.arange(len(order), device=order.device) - first
        return place

    def folds(self, most: int, *, names: int) -> list[Division]:
        """At most `most` divisions that leave out every n-th example of each of `names` names.

        Where some names have no examples, a division leaves out all examples of every n-th other name as well: these
        show how names without examples fare. With one example per name, every other name is left out. Something is
        always kept.
        """
        count = min(most, int(self.place.max()) + 1)
        has_some = self.counts(names) > 0
        rank = has_some.cumsum(0)[self.label]
        if count == 1:
            return self._without([rank % 2 == one for one in range(2)])
        if bool(has_some.all()):
            return self._without([self.place % count == one for one in range(count)])
        return self._without([(self.place % count == one % count) | (rank % most == one) for one in range(most)])

    def _without(self, left_out: list[Bool[Tensor, " n"]]) -> list[Division]:
        return [Division(self[~rows], self[rows]) for rows in left_out if not bool(rows.all())]

    def without_copies(self) -> Examples:
        """The examples with every image once; one that stands under several names shows none of them for sure.

        A copy would judge itself where examples are left out.
        """
        is_kept = []
        for rows in torch.arange(len(self), device=self.z.device).split(NUMBERS.block):
            is_same = self.z[rows] @ self.z.T >= NUMBERS.same_image
            has_name = self.label[rows].unsqueeze(1) == self.label
            is_earlier = torch.arange(len(self), device=rows.device) < rows.unsqueeze(1)
            is_kept.append(~(is_same & (is_earlier | ~has_name)).any(1))
        return self[torch.cat(is_kept)] if is_kept else self

    def balanced(self, names: int) -> Examples:
        """The examples without those by which a name has more than `balance` (1 + the mean of the other names).

        What a detector takes for all known images would else be the images of one name.
        """
        if names == 1:
            return self
        counts = self.counts(names).double()
        others = (counts.sum() - counts) / (names - 1)
        return self[self.place < (NUMBERS.balance * (1 + others)).floor()[self.label]]

    def for_threshold(self) -> Division:
        """The examples that teach, and the last of each name that has two or more, which tell the threshold.

        One of `spared_one_of` where a name has many, `most_spared` in all.
        """
        count = self.counts(int(self.label.max()) + 1)[self.label]
        wanted = (count // NUMBERS.spared_one_of).clamp(min=1)
        rows = ((count - 1 - self.place < wanted) & (self.place >= NUMBERS.teaching)).nonzero().flatten()
        most = min(len(rows), NUMBERS.most_spared)
        evenly = torch.arange(most, device=rows.device) * len(rows) // max(most, 1)
        left_out = torch.zeros_like(self.label, dtype=torch.bool).index_fill(0, rows[evenly], True)
        return Division(self[~left_out], self[left_out])

    def contains(self, z: Float[Tensor, "T d"]) -> Bool[Tensor, " T"]:
        """Which images of a stream are examples as well."""
        return (z.float().to(self.z) @ self.z.T).amax(1) >= NUMBERS.same_image

    def check(self, space: LabelSpace) -> None:
        """Refuse examples of another encoder, or of names that a label space does not have."""
        if not len(self):
            raise DataError("expected at least one example, got none; leave out the examples to work from names alone")
        space.check_vectors(self.z.shape[1], self.encoder, "examples")
        if bool(((self.label < 0) | (self.label >= len(space.names))).any()):
            raise DataError(
                f"expected labels of examples from 0 to {len(space.names) - 1}, one for each known name, got "
                f"{int(self.label.min())} to {int(self.label.max())}; use the order of the names"
            )

    def to(self, *, device: torch.device | str | None = None) -> Examples:
        """The same examples on another device."""
        return replace(self, z=self.z.to(device=device), label=self.label.to(device=device))

    @classmethod
    def of(cls, features: Features, names: tuple[str, ...]) -> Examples:
        """Labelled features as examples of `names`; refuse a class that is none of them.

        Features without labels are labelled by the folders of their images.
        """
        features = features.labelled
        place = {comparable_name(name): index for index, name in enumerate(names)}
        classes = [comparable_name(name) for name in features.classes]
        if foreign := [name for name in features.classes if comparable_name(name) not in place]:
            raise DataError(unknown_classes_message(foreign, names, features.name))
        label = torch.tensor([place[name] for name in classes])[features.true_labels]
        return cls(features.z, label, features.keys, features.made_by)


def comparable_name(name: str) -> str:
    """A name as names of folders and names of classes are compared.

    >>> comparable_name("Sports_car") == comparable_name("sports car")
    True
    """
    return " ".join(name.replace("_", " ").lower().split())


def unknown_classes_message(foreign: list[str], names: tuple[str, ...], where: str | Path) -> str:
    """What to say of classes of examples that are no known names."""
    return (
        f"expected examples of known names in {where}, got {', '.join(map(repr, foreign[:3]))}, which "
        f"{'is' if len(foreign) == 1 else 'are'} not among {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}; "
        "rename the folder, or add the name with --label"
    )
