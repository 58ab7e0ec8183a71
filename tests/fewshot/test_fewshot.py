from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import cone, space, unit
from unseen.detectors import MCM
from unseen.errors import LabelError, SettingError
from unseen.labels import Examples, LabelSpace
from unseen_bench.checks import check_detector, example_stream
from unseen_bench.methods import fewshot

LABELS = space(5, 20, 12)
EXAMPLES = Examples(unit(15, 12, seed=4), torch.arange(15) % 5)


def made(name: str, examples: Examples = EXAMPLES, **settings: int) -> Any:
    return fewshot.make(name, LABELS, examples, **settings)


def looks(labels: LabelSpace, count: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of each name around a point that lies apart from its text."""
    names, width = len(labels.names), labels.dim
    centres = normalize(labels.id_anchors.float() + unit(names, width, seed=11).float(), dim=1)
    label = torch.arange(names).repeat(count)
    noise = 0.05 * torch.randn(len(label), width, generator=torch.Generator().manual_seed(seed))
    return normalize(centres[label] + noise, dim=1), label


@pytest.mark.parametrize("name", fewshot.REGISTRY)
def test_every_method_passes_every_check(name: str) -> None:
    detector = fewshot.make(name, LABELS, EXAMPLES)
    check_detector(detector, example_stream(detector, 24))


@pytest.mark.parametrize("name", fewshot.REGISTRY)
def test_every_method_names_images_that_look_like_its_examples(name: str) -> None:
    labels = cone(6, 30, 32, dtype=torch.float32)
    z, label = looks(labels, 8)
    detector = fewshot.make(name, labels, Examples(z, label))
    unseen_z, truth = looks(labels, 4, seed=1)
    frozen = MCM(labels).score(None, unseen_z).label
    got = detector.score(None, unseen_z).label
    assert float((got == truth).double().mean()) >= max(0.5, float((frozen == truth).double().mean()))


def test_tip_adapter_equals_its_formula() -> None:
    detector = made("tip-adapter")
    z = unit(3, 12, seed=8)
    for row, sample in zip(detector.logits(z), z, strict=True):
        for name in range(5):
            text = 100 * float(sample @ LABELS.id_anchors[name])
            near = [float(sample @ EXAMPLES.z[i].double()) for i in range(15) if int(EXAMPLES.label[i]) == name]
            assert float(row[name]) == pytest.approx(text + 1.17 * sum(math.exp(c - 1) for c in near), rel=1e-6)


def test_equal_examples_are_trained_on_once() -> None:
    untaught = [fewshot.REGISTRY[name](LABELS) for name in ("vos-head", "vos-head", "npos-head")]
    first, again, other = (fewshot.taught(one, EXAMPLES.z.clone(), EXAMPLES.label) for one in untaught)
    assert first is again
    assert type(other) is not type(first)
    assert fewshot.taught(untaught[0], EXAMPLES.z.flip(0), EXAMPLES.label.flip(0)) is not first
    torch.testing.assert_close(first.examples.z, EXAMPLES.z)


def test_outliers_of_vos_are_as_far_as_the_farthest_of_many_draws() -> None:
    detector = made("vos-head")
    mean, factor = detector.spread
    drawn = torch.stack([detector.outliers(torch.Generator().manual_seed(i)) for i in range(40)])
    whitened = torch.linalg.solve_triangular(factor, (drawn - mean).flatten(0, 1).T, upper=False).T
    normal = torch.randn(40, 10_000, 12, generator=torch.Generator().manual_seed(0)).square().sum(2).amax(1)
    assert float(whitened.square().sum(1).mean()) == pytest.approx(float(normal.mean()), rel=0.05)


def test_outliers_of_npos_lie_farther_from_the_examples_than_examples_do() -> None:
    detector = made("npos-head")
    drawn = detector.outliers(torch.Generator().manual_seed(0))
    assert len(drawn) == 1
    assert float(detector._distance(drawn).mean()) > float(detector._distance(detector.images, own=True).mean())


def test_names_without_examples_keep_their_text_in_prototypes() -> None:
    few = EXAMPLES[EXAMPLES.label < 4]
    prototypes = made("few-shot-prototypes", few)
    gap = few.z.double().mean(0) - LABELS.id_anchors[few.label].mean(0)
    torch.testing.assert_close(prototypes.prototypes[0][4], normalize(LABELS.id_anchors[4] + gap, dim=0))


def test_a_label_space_without_examples_and_an_unknown_name_are_refused() -> None:
    with pytest.raises(LabelError, match="expected a label space with examples for 'taskres', got none"):
        fewshot.TaskRes(LABELS).score(None, unit(1, 12))
    with pytest.raises(SettingError, match="expected a method that needs examples out of taskres"):
        fewshot.make("tascres", LABELS, EXAMPLES)
    assert replace(LABELS, examples=EXAMPLES).fingerprint != LABELS.fingerprint
