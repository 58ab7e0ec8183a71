"""Train contexts: seeded, ended early where examples held out no longer gain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import SGD

from unseen_bench.methods.prompts.methods import Contexts, LabelledBatch, LearnedRows, PromptLearner, name_loss
from unseen_bench.methods.prompts.tower import PromptTokens, PromptTower

WARM_UP = 1e-5  # rate of the first epoch


class Epoch(NamedTuple):
    """What an epoch gave."""

    number: int  # from 1
    loss: float
    held_out: float  # cross-entropy of the examples held out; nan without any


@dataclass
class Training:
    """Contexts on their way: the method, what it learns from, and how far it is."""

    method: PromptLearner
    tower: PromptTower
    known: PromptTokens
    images: LabelledBatch
    held_out: LabelledBatch | None = None
    negative: PromptTokens | None = None
    seed: int = 0
    patience: int = 5  # epochs without a gain of the examples held out
    contexts: Contexts = field(init=False)
    best: Contexts = field(init=False)
    epoch: int = field(default=0, init=False)
    lowest: float = field(default=math.inf, init=False)
    stale: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Start."""
        generator = torch.Generator().manual_seed(self.seed)
        start = self.method.start(self.tower, len(self.known.ids), generator)
        self.contexts = {name: one.detach().clone().requires_grad_() for name, one in start.items()}
        self.best = {name: one.detach().clone() for name, one in start.items()}
        self.optimiser = SGD([*self.contexts.values()], lr=self.method.rate, momentum=0.9, weight_decay=5e-4)
        encoder = self.tower.encoder  # small gradients are zero in float16, which GPUs without bfloat16 have
        self.scaler = GradScaler(encoder.device.type, enabled=encoder.dtype == torch.float16)

    def __iter__(self) -> Iterator[Epoch]:
        """Train epoch by epoch."""
        while self.epoch < self.method.epochs and self.stale < self.patience:
            if self.method.has_second_phase and self.epoch == self._second_phase:
                self._set_contexts(self.best)
            loss = self._train_epoch()
            self.epoch += 1
            found = self._held_out_loss()
            self._keep(found)
            done = Epoch(self.epoch, loss, found)
            if self.method.has_second_phase and self.stale >= self.patience:
                self.epoch, self.stale = self._second_phase, 0  # an early stop ends the first phase alone
            yield done

    def rows(self, contexts: Mapping[str, Tensor] | None = None) -> LearnedRows:
        """The text features of the best contexts, or of others."""
        with torch.no_grad():
            return self._rows(dict(self.best if contexts is None else contexts))

    def _rows(self, contexts: Contexts) -> LearnedRows:
        return self.method.rows(self.tower, self.known, self.negative, contexts)

    def _train_epoch(self) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate_of(self.epoch)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(len(self.images.z), generator=generator)
        batches = math.ceil(len(order) / self.method.batch)  # of one size: a few left over would count as many
        return float(torch.stack([self.step(rows) for rows in order.tensor_split(batches)]).mean())

    def step(self, rows: Tensor) -> Tensor:
        """Take one step on some of the examples and return the loss before it."""
        self.optimiser.zero_grad()
        images, done = select_examples(self.images, rows), self.epoch / self.method.epochs
        loss = self.method.loss(self._rows(self.contexts), images, done)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss.detach()

    def rate_of(self, epoch: int) -> float:
        """The rate of an epoch, counted from 0: one to warm up, then down a cosine."""
        if epoch == 0:
            return WARM_UP
        return self.method.rate * (1 + math.cos(math.pi * epoch / self.method.epochs)) / 2

    def _held_out_loss(self) -> float:
        if self.held_out is None:
            return math.nan
        rows = self.rows(self.contexts)
        return float(name_loss(self.held_out.z, rows.known, self.held_out.label))

    def _keep(self, found: float) -> None:
        # in the second phase known names are fixed, so that their loss cannot tell
        is_better = math.isnan(found) or found < self.lowest or self._is_in_second_phase
        self.stale = 0 if is_better else self.stale + 1
        if is_better:
            self.lowest = found if not math.isnan(found) else self.lowest
            self.best = {name: one.detach().clone() for name, one in self.contexts.items()}

    @property
    def _second_phase(self) -> int:
        """How many epochs the first phase has."""
        return -(-self.method.epochs // 2)

    @property
    def _is_in_second_phase(self) -> bool:
        return self.method.has_second_phase and self.epoch > self._second_phase

    def _set_contexts(self, contexts: Mapping[str, Tensor]) -> None:
        for name, one in self.contexts.items():
            one.data.copy_(contexts[name])


def select_examples(batch: LabelledBatch, rows: Tensor) -> LabelledBatch:
    """Some of the examples, where the features are."""
    chosen: Any = (None if part is None else part[rows.to(part.device)].to(batch.z.device) for part in batch)
    return LabelledBatch(*chosen)


def divide(batch: LabelledBatch, kept: Sequence[bool]) -> tuple[LabelledBatch, LabelledBatch | None]:
    """The examples at which `kept` is true, and the others, None where there are none."""
    mask = torch.tensor(kept)  # parts stay where they are: patches on the host
    parts: list[Any] = [[None if part is None else part[rows] for part in batch] for rows in (mask, ~mask)]
    return LabelledBatch(*parts[0]), None if bool(mask.all()) else LabelledBatch(*parts[1])
