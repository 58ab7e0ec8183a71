from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.methods import ALL
from helpers.streams import space, unit
from unseen import LabelSpace
from unseen.detectors import Detector, make
from unseen.errors import FeatureError, LabelError, SettingError
from unseen_bench.checks import check_detector, example_stream

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ALL},
    "neglabel, 7 groups": {"groups": 7},
    "adaneg, task": {"adaptive": "task"},
    "adaneg, 2 slots": {"slots": 2},
    "tanl, short memory": {"queue": 5, "top": 20, "window": 13, "gap": 0.1},
    "framework, own targets": {"targets": lambda z: (z[:, :8] * 3).softmax(dim=1)},
}
IN_FLOAT32 = ["pooled", "online", "online-id", "framework", "neglabel", "adaneg", "tanl, short memory"]


def variant(name: str, labels: LabelSpace) -> Detector[Any]:
    return make(name.split(",")[0], labels, **VARIANTS[name])


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float64) for name in VARIANTS] + [(name, torch.float32) for name in IN_FLOAT32]
)
def test_every_detector_passes_every_check(name: str, dtype: torch.dtype) -> None:
    check_detector(variant(name, space(8, 60, 24, dtype=dtype)))


@pytest.mark.parametrize("name", [name for name, options in VARIANTS.items() if "targets" not in options])
def test_permuting_the_names_permutes_labels_and_no_score(name: str) -> None:
    labels = space(8, 60, 24)
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    turned = replace(labels, names=tuple(labels.names[i] for i in order), id_anchors=labels.id_anchors[order])
    one, two = variant(name, labels), variant(name, turned)
    z = example_stream(one)
    (expected, _), (got, _) = one.observe(one.start(), z), two.observe(two.start(), z)
    torch.testing.assert_close(got.score, expected.score, rtol=1e-7, atol=1e-9)
    assert torch.equal(order[got.label], expected.label)
    assert torch.equal(got.route, expected.route)


@pytest.mark.parametrize("count", [742, 10_499])
@pytest.mark.parametrize("name", ["neglabel", "csp", "dnm"])
def test_the_published_hundred_groups_fit_published_label_spaces(name: str, count: int) -> None:
    assert make(name, space(3, count, 4)).members.shape == (100, count // 100)  # type: ignore[attr-defined]


NUMBERS = [
    (name, one.name)
    for name, kind in ALL.items()
    for one in fields(kind)
    if isinstance(one.default, int | float) and one.name not in ("seed", "delta")  # any will do
]


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_every_number_that_is_set_has_a_range(name: str, setting: str, labels: LabelSpace) -> None:
    with pytest.raises(SettingError, match=rf"expected {setting} (above|in) .*, got -1; "):
        make(name, labels, **{setting: -1})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nobody", {}, "expected a detector out of adaneg, .* got 'nobody'"),
        ("mcm", {"kappa": 1}, "expected settings of 'mcm', got \\['kappa'\\]"),
        ("mcm", {"tau": math.inf}, "expected tau above 0, got inf"),
        ("neglabel", {"tau": math.nan}, "expected tau above 0, got nan"),
        ("neglabel", {"groups": 101}, "expected groups in \\[1, 100\\], got 101"),
        ("adaneg", {"groups": 31}, "expected groups in \\[1, 30\\], got 31"),
        ("adaneg", {"adaptive": "both"}, "expected adaptive out of sample, task, got 'both'"),
        ("dnm", {"alpha": 0}, "expected alpha in \\(0, 1\\], got 0"),
        ("online", {"beta": 0.5}, "expected beta in \\(0.5, 1\\], got 0.5"),
    ],
)
def test_a_setting_out_of_range_is_refused(name: str, options: dict[str, Any], words: str, labels: LabelSpace) -> None:
    with pytest.raises(SettingError, match=words):
        make(name, labels, **options)


@pytest.mark.parametrize("name", [name for name, kind in ALL.items() if kind.needs_negatives])
def test_a_label_space_without_negatives_is_refused(name: str) -> None:
    with pytest.raises(LabelError, match=f"expected a label space with negatives for '{name}', got none"):
        make(name, space(3, 0, 8))


def test_images_without_patches_are_refused_by_gl_mcm(labels: LabelSpace) -> None:
    detector = make("gl-mcm", labels)
    with pytest.raises(FeatureError, match="expected at least one patch per image"):
        detector.score(None, unit(3, 1, 16))
    with pytest.raises(FeatureError, match=r"expected features of shape \[n, 1 \+ patches, 16\].* got \[3, 16\]"):
        detector.score(None, unit(3, 16))
    with pytest.raises(FeatureError, match="expected at least one view per image for 'infoood-reconstructed'"):
        make("infoood-reconstructed", labels).score(None, unit(3, 1, 16))


@pytest.mark.parametrize(
    ("z", "words"),
    [
        (unit(16), r"expected features of shape \[n, 16\].* got \[16\]; pass a batch \(z\[None\]\)"),
        (unit(2, 8), r"expected features of shape \[n, 16\].* got \[2, 8\]"),
        (torch.ones(2, 16, dtype=torch.int64), "expected floating-point features, got torch.int64"),
        (torch.full((2, 16), math.nan), "expected finite features, got NaN or infinity in row 0"),
        (torch.stack([unit(16), torch.zeros(16)]), "expected unit features, got a zero vector in row 1"),
        (3 * unit(2, 16), "expected unit features, got a norm of 3 in row 0"),
        (unit(2, 16).to("meta"), "expected features on cpu like the label space, got meta"),
    ],
    ids=["one vector", "wrong width", "integers", "NaN", "zero", "not unit", "elsewhere"],
)
def test_invalid_features_are_refused(z: Tensor, words: str, labels: LabelSpace) -> None:
    with pytest.raises(FeatureError, match=words):
        make("neglabel", labels).score(None, z)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (lambda z: z[:, :3], r"expected soft targets of shape \[5, 6\]"),
        (lambda z: -torch.ones(len(z), 6), "without negative entries"),
        (lambda z: torch.ones(len(z), 6), "expected soft targets that sum to 1"),
    ],
)
def test_soft_targets_that_are_not_distributions_are_refused(
    targets: Callable[[Tensor], Tensor], words: str, labels: LabelSpace
) -> None:
    detector = make("framework", labels, targets=targets)
    with pytest.raises(FeatureError, match=words):
        detector.observe(detector.start(), unit(5, 16))
