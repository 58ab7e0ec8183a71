"""Whole losses of the prompt learners against sums written out in float64, and the schedule of their rates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.streams import unit
from unseen_bench.methods.prompts import REGISTRY, LabelledBatch, Training
from unseen_bench.methods.prompts.methods import LearnedRows

K, B, WIDTH = 6, 5, 8
Z, KNOWN, LABEL = unit(B, WIDTH, seed=1), unit(K, WIDTH, seed=2), torch.tensor([0, 3, 5, 3, 1])


def loss_of(method: str, negative: Tensor, done: float = 0.0, **parts: Tensor) -> float:
    return float(REGISTRY[method]().loss(LearnedRows(KNOWN, negative), LabelledBatch(Z, LABEL, **parts), done))


def mean_nll(z: Tensor, rows: Tensor, label: Tensor, scale: float = 100.0) -> float:
    """The mean of -log softmax(scale cosine) at the label, name by name."""
    total = 0.0
    for image, name in zip(z, label.tolist(), strict=True):
        logit = [scale * float(image @ row) for row in rows]
        top = max(logit)
        total += top + math.log(sum(math.exp(one - top) for one in logit)) - logit[name]
    return total / len(z)


def pairwise(rows: Tensor) -> float:
    """The mean cosine of all pairs of rows of each name."""
    found = [
        float(rows[i, name] @ rows[j, name])
        for name in range(rows.shape[1])
        for i in range(len(rows))
        for j in range(i + 1, len(rows))
    ]
    return sum(found) / len(found)


def test_coop_and_lapt_are_cross_entropies_over_names_and_over_all_words() -> None:
    words = unit(4, WIDTH, seed=3)
    assert loss_of("coop", words[:0]) == pytest.approx(mean_nll(Z, KNOWN, LABEL))
    assert loss_of("lapt", words) == pytest.approx(mean_nll(Z, torch.cat([KNOWN, words]), LABEL))


def test_locoop_subtracts_a_quarter_of_the_entropy_of_patches_that_lack_the_label() -> None:
    patches = unit(B * 7, WIDTH, seed=4).reshape(B, 7, WIDTH)
    entropies = []
    for own, name in zip(patches, LABEL.tolist(), strict=True):
        for patch in own:
            share = (100 * KNOWN @ patch).softmax(0)
            if int(share.argmax()) != name:  # the best fifth of six names is one
                entropies.append(float(-(share * share.log()).sum()))
    assert len(entropies) < B * 7
    expected = mean_nll(Z, KNOWN, LABEL) - 0.25 * sum(entropies) / len(entropies)
    assert loss_of("locoop", KNOWN[:0], patches=patches) == pytest.approx(expected)


def test_lsn_adds_the_loss_of_distances_to_what_names_are_not_and_their_likeness() -> None:
    negative = unit(3 * K, WIDTH, seed=5).reshape(3, K, WIDTH)
    # softmax(20 (1 - cosine)) is softmax(-20 cosine)
    away = sum(mean_nll(Z, one, LABEL, scale=-20.0) for one in negative) / 3
    assert loss_of("lsn", negative) == pytest.approx(mean_nll(Z, KNOWN, LABEL) + away + pairwise(negative))


def test_negprompt_is_coop_first_and_then_a_multi_label_loss_with_negatives_kept_apart() -> None:
    negative = unit(2 * K, WIDTH, seed=6).reshape(2, K, WIDTH)
    assert loss_of("negprompt", negative, 0.49) == pytest.approx(mean_nll(Z, KNOWN, LABEL))
    near = sum(float(one[name] @ KNOWN[name]) for one in negative for name in range(K)) / (2 * K)
    logistic = [
        float(torch.log1p(torch.exp((-1 if name == label else 1) * 100 * (z @ rows[name]))))
        for z, label in zip(Z, LABEL.tolist(), strict=True)
        for rows in (KNOWN, *negative)
        for name in range(K)
    ]
    expected = sum(logistic) / len(logistic) + 1e-4 * near + 1e-5 * pairwise(negative)
    assert loss_of("negprompt", negative, 0.5) == pytest.approx(expected)


def test_rates_are_warmed_up_for_one_epoch_and_fall_by_a_cosine() -> None:
    run = Training.__new__(Training)
    for name, (epochs, rate) in {"coop": (50, 0.002), "lapt": (10, 0.01)}.items():
        run.method = REGISTRY[name]()
        assert (run.method.epochs, run.method.batch, run.method.context) == (epochs, 32, 16)
        found = [run.rate_of(epoch) for epoch in range(epochs)]
        assert found[0] == 1e-5
        assert found[1:] == pytest.approx([rate * math.cos(math.pi * e / epochs / 2) ** 2 for e in range(1, epochs)])
