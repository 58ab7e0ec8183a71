"""The paper's methods: prototypes that start as text and learn, online and without labels, where images are.

`Online` is Algorithm 1, `OnlineID` Algorithm 2, `Framework` the framework of Eq. 7-8 with soft targets of your own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from unseen.detectors.base import Detector, DetectorOutput, above_zero, setting
from unseen.detectors.state import OldPlaces, rows_by_old_place
from unseen.errors import FeatureError
from unseen.labels import LabelSpace
from unseen.odds import TextLogits, logit, logits, mcm, neglabel, text_logits, top
from unseen.scan import Anchors, TargetSource, is_on_gpu, read, run_both, scan, scan_many, shared_targets
from unseen.scan.gate import decaying_steps, exact_near_bound, routes

S = TypeVar("S")
TargetFunction = Callable[[Float[Tensor, "T d"]], Float[Tensor, "T K"]]


@dataclass(frozen=True, eq=False)
class PrototypeLearner(Detector[S]):
    """A method that learns banks of prototypes by the scan."""

    tau: float = above_zero(0.01)  # temperature of the scores and of the frozen text
    kappa: float = above_zero(0.05)  # temperature of the update
    rho: float = setting(0.1, 0, 100)  # first step

    def block_for(self, z: Tensor) -> int:
        """The whole stream on a GPU: nothing of the size of samples times names is ever stored there."""
        return max(1, len(z)) if is_on_gpu(z) else super().block_for(z)


class Banks(NamedTuple):
    """Moving prototypes of the known and the unknown side, and how many samples taught each."""

    id_bank: Float[Tensor, "K d"]
    ood_bank: Float[Tensor, "L d"]
    id_seen: Int[Tensor, ""]
    ood_seen: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class Online(PrototypeLearner[Banks]):
    """Learn both banks from samples the frozen text is sure of, and score by Eq. 14."""

    beta: float = setting(0.95, 0.5, 1, low_open=True)

    name: ClassVar[str] = "online"
    needs_negatives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def start(self) -> Banks:
        """Both banks as frozen text (Eq. 15)."""
        none = torch.zeros((), dtype=torch.int64, device=self.labels.id_anchors.device)
        return Banks(self.labels.id_anchors, self.labels.ood_anchors, none, none)

    def read(self, state: Banks, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block with the banks as they are (Eq. 14)."""
        known = top(logits(z, state.id_bank, tau=self.tau))
        negative = top(logits(z, state.ood_bank, tau=self.tau))
        return DetectorOutput.frozen(known.energy - negative.energy, known.label, negative=negative.label)

    def learn(self, state: Banks, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Banks]:
        """Learn from a block in order and score each sample after its own update (Algorithm 1)."""
        sources, trust = self.sources_and_trust(z)
        return self.learn_with_trust(state, z, sources, trust)

    def learn_with_trust(
        self,
        state: Banks,
        z: Float[Tensor, "T d"],
        sources: tuple[TargetSource, TargetSource],
        trust: Float[Tensor, " T"],
    ) -> tuple[DetectorOutput, Banks]:
        """Learn and score; samples of trust logit(beta) or more teach known, of its negative or less unknown.

        `sources` hold the soft targets of the known and of the unknown bank.
        """
        known, unknown = routes(trust, logit(self.beta))
        id_step, id_seen = decaying_steps(known, state.id_seen, rho=self.rho, dtype=z.dtype)
        ood_step, ood_seen = decaying_steps(unknown, state.ood_seen, rho=self.rho, dtype=z.dtype)
        settings = {"kappa": self.kappa, "tau": self.tau}
        (id_read, id_bank), (ood_read, ood_bank) = run_both(
            partial(scan, state.id_bank, sources[0], z, id_step, **settings),
            partial(scan, state.ood_bank, sources[1], z, ood_step, **settings),
            z.device,
        )
        route = known.to(torch.int8) - unknown.to(torch.int8)
        return (
            DetectorOutput.of(id_read.energy - ood_read.energy, id_read.label, route, ood_read.label),
            Banks(id_bank, ood_bank, id_seen, ood_seen),
        )

    def observe_many(
        self, states: Sequence[Banks], z: Float[Tensor, "n d"], orders: Sequence[Int[Tensor, " T"]]
    ) -> list[tuple[DetectorOutput, Banks]]:
        """Observe independent streams, each an order of rows of `z`; on a GPU all at once."""
        if not is_on_gpu(z) or not states:
            return super().observe_many(states, z, orders)
        return self.observe_together(states, z, orders)

    def observe_together(
        self, states: Sequence[Banks], z: Float[Tensor, "n d"], orders: Sequence[Int[Tensor, " T"]]
    ) -> list[tuple[DetectorOutput, Banks]]:
        """Observe streams side by side; the logits of the frozen text are computed once per image for all of them."""
        z = self._checked(z)
        anchors, trust = self._anchors, self.sources_and_trust(z)[1]
        order = pad_sequence(list(orders), batch_first=True, padding_value=len(z))  # one past the last: no sample
        samples = pad(z, (0, 0, 0, 1))[order]
        sides = []
        for taught, rows, name in zip(routes(trust, logit(self.beta)), anchors, ("id", "ood"), strict=True):
            banks, counts = ([getattr(state, f"{name}_{part}") for state in states] for part in ("bank", "seen"))
            route = pad(taught, (0, 1))[order]
            step, seen = decaying_steps(route, torch.stack(counts), rho=self.rho, dtype=z.dtype)
            targets = shared_targets(rows, z, taught, order)
            run = partial(scan_many, _stack_banks(banks), targets, samples, step, kappa=self.kappa, tau=self.tau)
            sides.append((run, route, seen))
        (id_run, known, id_seen), (ood_run, unknown, ood_seen) = sides
        id_scan, ood_scan = run_both(id_run, ood_run, z.device)
        score, route = id_scan.read.energy - ood_scan.read.energy, known.to(torch.int8) - unknown.to(torch.int8)
        columns = score, id_scan.read.label, route, ood_scan.read.label
        return [
            (
                DetectorOutput.of(*(column[i, :n] for column in columns)),
                Banks(id_scan.bank[i], ood_scan.bank[i], id_seen[i], ood_seen[i]),
            )
            for i, n in enumerate(map(len, orders))
        ]

    @property
    def _anchors(self) -> tuple[Anchors, Anchors]:
        return Anchors(self.labels.id_anchors, self.tau), Anchors(self.labels.ood_anchors, self.tau)

    def sources_and_trust(
        self, z: Float[Tensor, "T d"]
    ) -> tuple[tuple[TargetSource, TargetSource], Float[Tensor, " T"]]:
        """The sources of both banks' soft targets, and the frozen text's log-odds that a sample is known."""
        sources: tuple[TargetSource, TargetSource]
        if is_on_gpu(z):  # logits of whole streams do not fit: reduced here, computed again for teachers
            known, negative = (read(z, rows, tau=tau).energy for rows, tau in self._anchors)
            sources, trust = self._anchors, known - negative
        else:
            sources = text = text_logits(self.labels, z, tau=self.tau)
            trust = neglabel(text)
        return sources, exact_near_bound(trust, neglabel, self.labels, z, tau=self.tau, bound=logit(self.beta))

    def _transferred(self, state: Banks, before: Detector[Banks], z: Float[Tensor, "n d"]) -> Banks:
        known, negative = OldPlaces.of(self.labels, before.labels)
        return state._replace(
            id_bank=rows_by_old_place(state.id_bank, state.ood_bank, known, fresh=self.labels.id_anchors),
            ood_bank=rows_by_old_place(state.id_bank, state.ood_bank, negative, fresh=self.labels.ood_anchors),
        )


def _stack_banks(banks: list[Tensor]) -> Tensor:
    """Banks side by side, or the one they all are."""
    return banks[0] if all(bank is banks[0] for bank in banks) else torch.stack(banks)


class Bank(NamedTuple):
    """Moving prototypes of the known names, and how many samples taught them."""

    bank: Float[Tensor, "K d"]
    seen: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class SingleBank(PrototypeLearner[Bank]):
    """Learn one bank and score by the log-odds of its best name. Subclasses write `teaching`."""

    needs_names: ClassVar[int] = 2

    @abstractmethod
    def teaching(self, z: Float[Tensor, "T d"]) -> tuple[TargetSource, Bool[Tensor, " T"]]:
        """The soft targets of samples, and which samples teach."""

    def start(self) -> Bank:
        """The bank as frozen text."""
        anchors = self.labels.id_anchors
        return Bank(anchors, torch.zeros((), dtype=torch.int64, device=anchors.device))

    def read(self, state: Bank, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block with the bank as it is (Eq. 48)."""
        best = top(logits(z, state.bank, tau=self.tau))
        return DetectorOutput.frozen(best.log_odds, best.label)

    def learn(self, state: Bank, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Bank]:
        """Learn from a block in order (Eq. 8) and score each sample after its own update."""
        return self._taught(state, z, *self.teaching(z))

    def _taught(
        self, state: Bank, z: Float[Tensor, "T d"], targets: TargetSource, taught: Bool[Tensor, " T"]
    ) -> tuple[DetectorOutput, Bank]:
        step, seen = decaying_steps(taught, state.seen, rho=self.rho, dtype=z.dtype)
        best, bank = scan(state.bank, targets, z, step, kappa=self.kappa, tau=self.tau)
        return DetectorOutput.of(best.log_odds, best.label, taught), Bank(bank, seen)

    def _text_targets(self, z: Float[Tensor, "T d"]) -> Tensor | Anchors:
        """The logits of the frozen text; on a GPU the anchors, because logits of whole streams do not fit."""
        anchors = self.labels.id_anchors
        return Anchors(anchors, self.tau) if is_on_gpu(z) else logits(z, anchors, tau=self.tau)


@dataclass(frozen=True, eq=False)
class OnlineID(SingleBank):
    """Learn the known bank from samples whose best name the frozen text is sure of, and score by Eq. 48.

    `tau` is also the temperature of the gate: at MCM's own temperature of 1 no sample ever reaches `beta`.
    """

    beta: float = setting(0.95, 0, 1)

    name: ClassVar[str] = "online-id"

    @cached_property
    def names_only(self) -> LabelSpace:
        """The label space without the negatives, which this method does not use."""
        return self.labels.with_negatives(0)

    def learn_with_trust(
        self, state: Bank, z: Float[Tensor, "T d"], sources: TextLogits, trust: Float[Tensor, " T"]
    ) -> tuple[DetectorOutput, Bank]:
        """Learn and score with routes from elsewhere; samples of trust logit(beta) or more teach."""
        return self._taught(state, z, sources.known, trust >= logit(self.beta))

    def teaching(self, z: Float[Tensor, "T d"]) -> tuple[TargetSource, Bool[Tensor, " T"]]:
        """The frozen text as soft targets, and the samples whose MCM is at least `beta` (Eq. 46)."""
        targets, bound = self._text_targets(z), logit(self.beta)
        best = read(z, targets.rows, tau=self.tau) if isinstance(targets, Anchors) else top(targets)
        return targets, exact_near_bound(best.log_odds, mcm, self.names_only, z, tau=self.tau, bound=bound) >= bound


@dataclass(frozen=True, eq=False)
class Framework(SingleBank):
    """Learn from every sample towards soft targets: the frozen text's own prediction, or those of `targets(z)`."""

    targets: TargetFunction | None = None

    name: ClassVar[str] = "framework"

    def teaching(self, z: Float[Tensor, "T d"]) -> tuple[TargetSource, Bool[Tensor, " T"]]:
        """The soft targets; every sample teaches."""
        targets = self._text_targets(z) if self.targets is None else self._own_targets(self.targets(z).to(z), len(z))
        return targets, torch.ones(len(z), dtype=torch.bool, device=z.device)

    def block_for(self, z: Tensor) -> int:
        """The whole stream on a GPU, unless the caller's own targets, [T, K] in size, come with it."""
        return super().block_for(z) if self.targets is None else Detector.block_for(self, z)

    def _own_targets(self, targets: Tensor, samples: int) -> Tensor:
        """The logits of the caller's soft targets; refuse what is no distribution."""
        names = len(self.labels.names)
        if targets.shape != (samples, names) or not bool((targets >= 0).all()):
            raise FeatureError(
                f"expected soft targets of shape [{samples}, {names}] without negative entries, "
                f"got {list(targets.shape)}; return one distribution over the names per sample"
            )
        if not bool(((targets.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise FeatureError("expected soft targets that sum to 1, got other sums; normalise them with softmax")
        return targets.log()
