"""From examples and a label space to one with learned rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from unseen.encoders.hub import HubEncoder
from unseen.errors import DataError, check_choice
from unseen.images import Image
from unseen.labels import LabelSpace
from unseen_bench.methods.prompts.methods import LAPT, REGISTRY, LabelledBatch, LearnedRows, PromptLearner
from unseen_bench.methods.prompts.tower import PromptTower
from unseen_bench.methods.prompts.training import Epoch, Training, divide


@dataclass(frozen=True)
class LearnOptions:
    """What can be chosen about a run; None is as published."""

    method: str = "locoop"
    epochs: int | None = None
    rate: float | None = None
    batch: int | None = None
    context: int | None = None
    seed: int = 0
    held_out: float = 0.25  # share of the examples of each name that decide when to stop
    patience: int = 5

    def learner(self) -> PromptLearner:
        """The method with its settings."""
        check_choice("a method", self.method, REGISTRY)
        chosen = {name: getattr(self, name) for name in ("epochs", "rate", "batch", "context")}
        return REGISTRY[self.method](**{name: value for name, value in chosen.items() if value is not None})


def learn(
    space: LabelSpace,
    images: LabelledBatch,
    encoder: HubEncoder,
    options: LearnOptions,
    *,
    report: Callable[[Epoch, PromptLearner], None] = lambda epoch, method: None,
) -> LabelSpace:
    """`space` with rows of learned prompts, from labelled images of its names."""
    method, tower = options.learner(), PromptTower(encoder)
    kept, held_out = divide(images, _teaches(images.label.tolist(), options.held_out))
    words = space.negatives[: LAPT.most_negatives] if method.moves_negatives else ()
    known = tower.tokens(space.names, method.context)
    negative = tower.tokens(words, method.context) if words else None
    training = Training(method, tower, known, kept, held_out, negative, seed=options.seed, patience=options.patience)
    for epoch in training:
        report(epoch, method)
    if words:
        training.negative = tower.tokens(space.negatives, method.context)
    return learned_space(space, training, training.rows())


def learned_space(space: LabelSpace, training: Training, rows: LearnedRows) -> LabelSpace:
    """The label space with learned rows: own negatives of the method, reworded ones, or those it had."""
    method = training.method
    names, anchors = list(space.negatives), space.ood_anchors
    if own := method.negatives(space.names):
        names, anchors = own, rows.negative.flatten(0, -2).to(anchors)
    elif method.moves_negatives and len(rows.negative):
        anchors = rows.negative.to(anchors)
    manifest = space.manifest | {
        "learned_by": method.name,
        "learned_epochs": str(training.epoch),
        "learned_from": f"{len(training.images.z)} examples",
        "learned_seed": str(training.seed),
    }
    return replace(
        space,
        negatives=tuple(names),
        id_anchors=rows.known.to(space.id_anchors),
        ood_anchors=anchors,
        prompt=f"learned: {method.name}, {method.context} tokens",
        manifest=manifest,
    )


def _teaches(label: Sequence[int], share: float) -> list[bool]:
    """Which examples teach: of each name the last `share`, rounded down, is held out."""
    counts = {name: label.count(name) for name in set(label)}
    seen: dict[int, int] = {}
    kept = []
    for name in label:
        seen[name] = seen.get(name, 0) + 1
        kept.append(seen[name] <= counts[name] - int(share * counts[name]))
    return kept


def encode_batch(
    pictures: Sequence[Image], label: Sequence[int], encoder: HubEncoder, needs: str, *, size: int = 32
) -> LabelledBatch:
    """The features of labelled images that a method needs; patches in half precision, on the host."""
    if not pictures:
        raise DataError("expected labelled images to learn from, got none; put photos into a folder per class")
    parts = [pictures[start : start + size] for start in range(0, len(pictures), size)]
    z = torch.cat([encoder.images(part) for part in parts]).to(encoder.device)
    found = LabelledBatch(z, torch.tensor(label, device=z.device))
    if needs == "patches":
        return found._replace(patches=torch.cat([encoder.patches(part).half().cpu() for part in parts]))
    return found
