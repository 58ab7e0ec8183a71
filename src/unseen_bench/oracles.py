"""Controls that route test samples by their labels: for study, never a result of a detector.

`oracle-online` and `oracle-online-id` are Algorithms 1 and 2 with routes from the truth in place of Eq. 10. They are an
upper bound for what better routes could give. `oracle-released` does what the code of the paper's authors does, which
prints the paper's figures: see `released`. Each has a control of its own, NAME-permuted: the same on the same images
with the truth about them drawn anew, at random. Images tell nothing then, chance is 50, and what it ranks above that is
what the label itself gives away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.detectors import Detector, DetectorOutput, Online, OnlineID
from unseen.detectors.base import BLOCK, unit
from unseen.detectors.neglabel import grouped_log_odds
from unseen.odds import energy, text_logits
from unseen.scan import naive
from unseen_bench.evaluate import Cost, Evaluation, judge
from unseen_bench.trial import Trial

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
    text = detector.labels.id_anchors, detector.labels.ood_anchors
    banks, taught = list(text), [0, 0]
    count = min(GROUPS, len(text[1]))
    groups = torch.arange(len(text[1]) // count * count, device=z.device).view(count, -1)
    scores, labels = [], []
    for image, known in zip(z, is_id.tolist(), strict=True):
        side = 0 if known else 1
        logits = [anchors @ image / detector.tau for anchors in text]
        target = logits[side].softmax(dim=0)
        weight = math.sqrt(taught[side] / len(z))
        blended = torch.nn.functional.normalize(torch.lerp(text[side], banks[side], weight), dim=1)
        logits[side] = blended @ image / detector.tau
        scores.append(grouped_log_odds(energy(logits[0].unsqueeze(0)), logits[1].unsqueeze(0), groups))
        labels.append(logits[0].argmax())
        taught[side] += 1
        step = torch.tensor(detector.rho / math.sqrt(taught[side]), dtype=z.dtype, device=z.device)
        banks[side] = naive.update(banks[side], image, target, step, kappa=detector.kappa)
    return DetectorOutput.of(torch.cat(scores).to(z), torch.stack(labels), torch.where(is_id, 1, -1).to(torch.int8))


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
    return judge(detector, output.cpu(), trial, name=name, cost=cost)


def permuted(trial: Trial, seed: int) -> Trial:
    """The same samples in the same order with the truth about them shuffled."""
    drawn = torch.randperm(len(trial.z), generator=torch.Generator().manual_seed(seed))
    return replace(trial, label=trial.label[drawn], source=trial.source[drawn])
