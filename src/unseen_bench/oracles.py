"""Controls that route test samples by their labels: for study, never a result of a detector.

`oracle-online` and `oracle-online-id` are Algorithms 1 and 2 with routes from the truth in place of Eq. 10. They are an
upper bound for what better routes could give. `oracle-released` does what the code of the paper's authors does, which
prints the paper's figures: see `released`. Each has a control of its own, NAME-permuted: the same on the same images
with the truth about them drawn anew, at random. Images tell nothing then, chance is 50, and what it ranks above that is
what the label itself gives away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.detectors import Detector, DetectorOutput, Online, OnlineID
from unseen.detectors.base import BLOCK, unit
from unseen.detectors.neglabel import grouped_log_odds
from unseen.odds import energy, text_logits
from unseen_bench.evaluate import Cost, Evaluation, judge, ranked
from unseen_bench.trial import Trial
from unseen_bench.walk import walk

GROUPS = 20  # of negatives in the released code, one after another as they are listed

Stream = Callable[[Any, Float[Tensor, "T d"], Bool[Tensor, " T"]], DetectorOutput]


def routed(detector: Online | OnlineID, z: Float[Tensor, "T d"], is_id: Bool[Tensor, " T"]) -> DetectorOutput:
    """What Algorithm 1 or 2 says of a stream when every sample is routed by the truth."""
    state: Any = detector.start()
    outputs = []
    for block, known in zip(z.split(BLOCK), is_id.split(BLOCK), strict=True):
        trust = torch.where(known, torch.inf, -torch.inf)
        text = text_logits(detector.labels, block, tau=detector.tau)
        output, state = detector.learn_with_trust(state, block, text, trust)
        outputs.append(output)
    return DetectorOutput.joined(outputs)


def released(detector: Online, z: Float[Tensor, "T d"], is_id: Bool[Tensor, " T"]) -> DetectorOutput:
    """What the authors' code says of a stream: it differs from Algorithm 1 in five ways.

    Every sample teaches the side that its label names; none is skipped. It is scored before its own update. Its score
    reads frozen text on the other side, and on the side of its label the mean of prototypes and text with the weight
    sqrt(samples that taught this side / length of the stream). Negatives are divided into GROUPS.
    """
    sides = [Side(anchors, anchors, 0) for anchors in (detector.labels.id_anchors, detector.labels.ood_anchors)]
    count = min(GROUPS, len(sides[1].text))
    groups = torch.arange(len(sides[1].text) // count * count, device=z.device).view(count, -1)
    outputs = []
    for block, known in zip(z.split(BLOCK), is_id.split(BLOCK), strict=True):
        logits = text_logits(detector.labels, block, tau=detector.tau)
        for i, mine in enumerate((known, ~known)):
            logits[i][mine], sides[i] = sides[i].taught_by(block[mine], logits[i][mine], detector, length=len(z))
        score = grouped_log_odds(energy(logits.known), logits.negative, groups)
        outputs.append(DetectorOutput.of(score, logits.known.argmax(dim=1), torch.where(known, 1, -1).to(torch.int8)))
    return DetectorOutput.joined(outputs)


class Side(NamedTuple):
    """The known or the negative names in the released code: text, prototypes, and how many samples taught them."""

    text: Float[Tensor, "C d"]
    bank: Float[Tensor, "C d"]
    taught: int

    def taught_by(
        self, z: Float[Tensor, "n d"], logits: Float[Tensor, "n C"], detector: Online, *, length: int
    ) -> tuple[Float[Tensor, "n C"], Side]:
        """The logits of each sample by the blend as it was before its own update, and the side after all of them.

        `logits` are those of the text, and `length` is that of the whole stream.
        """
        count = torch.arange(self.taught, self.taught + len(z), device=z.device).double()
        step, weight = (one.to(z.dtype) for one in (detector.rho / (count + 1).sqrt(), (count / length).sqrt()))
        bank, read = self.bank, [logits[:0]]
        for part in walk(bank, z, logits.softmax(dim=1), step, kappa=detector.kappa):
            text, share = logits[part.rows] * detector.tau, weight[part.rows].unsqueeze(1)
            pulled = part.coef * text  # how far each sample moved each row along its text
            likeness = ((self.text * bank).sum(dim=1) - pulled.cumsum(dim=0) + pulled) * part.scale
            squared = (1 - share) ** 2 + share**2 + 2 * share * (1 - share) * likeness  # length of the blend
            read.append(torch.lerp(text, part.cosine, share) / squared.sqrt() / detector.tau)
            bank = part.after
        return torch.cat(read), Side(self.text, bank, self.taught + len(z))


@dataclass(frozen=True)
class Oracle:
    """A detector, and how a stream goes through it with routes from the truth."""

    kind: type[Detector[Any]]
    observe: Stream
    is_permuted: bool = False


PLAIN = {
    "oracle-online": Oracle(Online, routed),
    "oracle-online-id": Oracle(OnlineID, routed),
    "oracle-released": Oracle(Online, released),
}
PERMUTED = {f"{name}-permuted": replace(one, is_permuted=True) for name, one in PLAIN.items()}
ORACLES = PLAIN | PERMUTED


def run_oracle(name: str, detector: Detector[Any], trial: Trial, *, seed: int = 0) -> Evaluation:
    """The evaluation of an oracle on a trial; `seed` draws the truth of a permuted one."""
    oracle = ORACLES[name]
    trial = permuted(trial, seed) if oracle.is_permuted else trial
    anchors = detector.labels.id_anchors
    started = perf_counter()
    output = oracle.observe(detector, unit(trial.z.to(anchors.device), like=anchors), trial.is_id.to(anchors.device))
    cost = Cost.of(perf_counter() - started, detector.start())
    return judge(ranked(detector), output.cpu(), trial, name=name, cost=cost)


def permuted(trial: Trial, seed: int) -> Trial:
    """The same samples in the same order with the truth about them shuffled."""
    drawn = torch.randperm(len(trial.z), generator=torch.Generator().manual_seed(seed))
    return replace(trial, label=trial.label[drawn], source=trial.source[drawn])
