"""Algorithm 1: prototypes that start as text and learn, online and without labels, where images are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from unseen.detectors.base import Detector, DetectorOutput, setting
from unseen.detectors.merging import MergeRule, merged_bank, sum_of_parts
from unseen.detectors.prototypes import PrototypeLearner
from unseen.detectors.transfer import OldPlaces, rows_by_old_place
from unseen.gate import decaying_steps, exact_near_bound, routes
from unseen.odds import energy, logit, logits, top
from unseen.scan import Anchors, TargetSource, is_on_gpu, read, run_both, scan, scan_many, shared_targets
from unseen.text import neglabel, text_logits


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
        return DetectorOutput.frozen(known.energy - energy(logits(z, state.ood_bank, tau=self.tau)), known.label)

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
            DetectorOutput.of(id_read.energy - ood_read.energy, id_read.label, route),
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
        return [
            (
                DetectorOutput.of(score[i, :n], id_scan.read.label[i, :n], route[i, :n]),
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

    def _merged(self, start: Banks, ends: Sequence[Banks], rule: MergeRule) -> Banks:
        id_taught, ood_taught = ([end[side] - start[side] for end in ends] for side in (2, 3))
        return Banks(
            merged_bank(start.id_bank, [end.id_bank for end in ends], id_taught, rule=rule),
            merged_bank(start.ood_bank, [end.ood_bank for end in ends], ood_taught, rule=rule),
            sum_of_parts(start.id_seen, [end.id_seen for end in ends]),
            sum_of_parts(start.ood_seen, [end.ood_seen for end in ends]),
        )


def _stack_banks(banks: list[Tensor]) -> Tensor:
    """Banks side by side, or the one they all are."""
    return banks[0] if all(bank is banks[0] for bank in banks) else torch.stack(banks)
