"""Heads on features: a linear probe, and VOS and NPOS with the head alone trained, on the features as they are."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize

from unseen.detectors.base import DetectorOutput, setting
from unseen.errors import import_extra
from unseen.odds import energy
from unseen_bench.methods.fewshot.base import FewShot, Schedule, train
from unseen_bench.methods.posthoc import MSP, fit


@dataclass(frozen=True)
class HeadNumbers:
    """As published, but for the ridge."""

    weight: float = 0.1  # of the outlier loss, in VOS and in NPOS
    drawn: int = 10_000  # VOS draws this many per name and keeps the least likely one
    late: float = 0.4  # share of the epochs before outliers are made
    ridge: float = 1e-4  # added to VOS' covariance


NUMBERS = HeadNumbers()

SCHEDULE = Schedule("sgd", 0.1, 100, 128)


@dataclass(frozen=True, eq=False)
class LinearProbe(FewShot):
    """Logistic regression on the examples, scored by the largest softmax probability; needs examples of all names."""

    name: ClassVar[str] = "linear-probe"
    needs_names: ClassVar[int] = 2

    @cached_property
    def fitted(self) -> MSP:
        """The fitted head."""
        with warnings.catch_warnings():  # scikit-learn takes one example per name for a regression
            warnings.filterwarnings("ignore", message="The number of unique classes")
            return fit(MSP(self.labels), self.images, self.examples.label)

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        return self.fitted.read(state, z)


@dataclass(frozen=True, eq=False)
class VOSHead(FewShot):
    """VOS (ICLR 2022), head only: cross-entropy + 0.1 x logistic loss on the energy, against sampled outliers.

    An outlier of a name is the least likely of 10,000 draws from its Gaussian, whose covariance all names share.
    """

    name: ClassVar[str] = "vos-head"
    reduced: ClassVar[str] = "trains a head on frozen features; the printed VOS trains a network"
    needs_names: ClassVar[int] = 2

    @cached_property
    def spread(self) -> tuple[Float[Tensor, "K d"], Float[Tensor, "d d"]]:
        """The mean of each name and the Cholesky factor of the shared covariance."""
        z, label, names = self.images, self.examples.label, len(self.labels.names)
        count = self.examples.counts(names).clamp(min=1).unsqueeze(1)
        mean = torch.zeros(names, z.shape[1]).to(z).index_add(0, label, z) / count
        centred = z - mean[label]
        covariance = centred.T @ centred / len(z) + NUMBERS.ridge * torch.eye(z.shape[1]).to(z)
        return mean, torch.linalg.cholesky(covariance)

    def outliers(self, generator: torch.Generator) -> Float[Tensor, "K d"]:
        """One outlier per name that has examples.

        The least likely of n normal draws is the farthest in units of the covariance: its squared distance is the
        largest of n chi-squares, which the n-th root of one uniform number gives, and its direction is uniform.
        """
        mean, factor = self.spread
        names, width = mean.shape
        uniform = torch.rand(names, 1, generator=generator, dtype=torch.float64)
        larger = -torch.expm1(uniform.log() / NUMBERS.drawn)  # the share of draws that lie even farther
        reach = torch.from_numpy(import_extra("scipy.special", "bench").chdtri(width, larger.numpy())).sqrt()
        direction = normalize(torch.randn(names, width, generator=generator), dim=1)
        drawn = mean + (reach * direction).to(mean) @ factor.T
        return drawn[self.examples.counts(names) > 0]

    @cached_property
    def head(self) -> list[Tensor]:
        """Rows and biases of the linear head, and slope and offset of the logistic loss, after training."""
        z, label, names = self.images, self.examples.label, len(self.labels.names)
        generator = torch.Generator().manual_seed(self.seed)

        def loss(parameters: Sequence[Tensor], rows: Int[Tensor, " b"], epoch: int) -> Tensor:
            weight, bias, slope, offset = parameters
            found = z[rows] @ weight.T + bias
            total = cross_entropy(found, label[rows])
            if epoch < NUMBERS.late * SCHEDULE.epochs:
                return total
            outlier = torch.logsumexp(self.outliers(generator) @ weight.T + bias, dim=1)
            odds = slope * torch.cat([torch.logsumexp(found, dim=1), outlier]) + offset
            known = torch.cat([torch.ones(len(rows)), torch.zeros(len(outlier))]).to(odds)
            return total + NUMBERS.weight * binary_cross_entropy_with_logits(odds, known)

        like = z.new_zeros(names, z.shape[1])
        return train([like, like[:, 0], z.new_ones(()), z.new_zeros(())], loss, len(z), SCHEDULE, seed=self.seed)

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        weight, bias, slope, offset = self.head
        found = z @ weight.T + bias
        return DetectorOutput.frozen(slope * energy(found) + offset, found.argmax(1))


@dataclass(frozen=True, eq=False)
class NPOSHead(FewShot):
    """NPOS (ICLR 2023), head only: cross-entropy + 0.1 x logistic loss of an MLP, against outliers at the boundary.

    Outliers are drawn around the examples with the largest distance to their k-th neighbour; of the draws those whose
    own distance is largest are kept.
    """

    k: int = setting(5, 1, 10_000)  # published: 400 of all training images; here of a few per name
    deviation: float = setting(0.1**0.5, 0, 10)  # variance 0.1 in all directions together
    hidden: int = setting(128, 1, 10_000)

    name: ClassVar[str] = "npos-head"
    reduced: ClassVar[str] = "trains a head on frozen features; the printed NPOS trains a network"
    needs_names: ClassVar[int] = 2

    def outliers(self, generator: torch.Generator) -> Float[Tensor, "m d"]:
        """As many outliers as a tenth of the examples, and no fewer than one."""
        z = self.images
        count = max(1, len(z) // 10)
        boundary = z[self.distance_to_others.topk(count).indices]
        noise = torch.randn(8, count, z.shape[1], generator=generator).to(z) / z.shape[1] ** 0.5
        drawn = normalize(boundary + self.deviation * noise, dim=2).flatten(0, 1)
        return drawn[self._distance(drawn).topk(count).indices]

    @cached_property
    def distance_to_others(self) -> Float[Tensor, " n"]:
        """How far each example lies from the k-th nearest of the others."""
        return self._distance(self.images, own=True)

    def _distance(self, z: Float[Tensor, "T d"], *, own: bool = False) -> Float[Tensor, " T"]:
        """1 - the cosine of the k-th nearest example, itself left out where `own`."""
        near = (z @ self.images.T).topk(min(self.k + own, len(self.images)), dim=1).values
        return 1 - near[:, -1]

    @cached_property
    def head(self) -> list[Tensor]:
        """The linear head and the two layers of the classifier of known and unknown, after training."""
        z, label, names = self.images, self.examples.label, len(self.labels.names)
        generator = torch.Generator().manual_seed(self.seed)

        def loss(parameters: Sequence[Tensor], rows: Int[Tensor, " b"], epoch: int) -> Tensor:
            weight, bias, *_ = parameters
            total = cross_entropy(z[rows] @ weight.T + bias, label[rows])
            if epoch < NUMBERS.late * SCHEDULE.epochs:
                return total
            outliers = self.outliers(generator)
            odds = _perceptron(parameters, torch.cat([z[rows], outliers]))
            known = torch.cat([torch.ones(len(rows)), torch.zeros(len(outliers))]).to(odds)
            return total + NUMBERS.weight * binary_cross_entropy_with_logits(odds, known)

        like = z.new_zeros(names, z.shape[1])
        first = torch.randn(self.hidden, z.shape[1], generator=generator).to(z) / z.shape[1] ** 0.5
        second = torch.randn(self.hidden, generator=generator).to(z) / self.hidden**0.5
        start = [like, like[:, 0], first, z.new_zeros(self.hidden), second, z.new_zeros(())]
        return train(start, loss, len(z), SCHEDULE, seed=self.seed)

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        weight, bias, *_ = self.head
        return DetectorOutput.frozen(_perceptron(self.head, z), (z @ weight.T + bias).argmax(1))


def _perceptron(parameters: Sequence[Tensor], z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
    *_, first, shift, second, offset = parameters
    return torch.relu(z @ first.T + shift) @ second + offset
