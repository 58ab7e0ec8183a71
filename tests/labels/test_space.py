from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.streams import space, unit
from unseen import LabelSpace
from unseen.errors import LabelError

VERSION_0_1 = Path(__file__).parents[1] / "data/v0.1"


def build(**changes: object) -> LabelSpace:
    fields: dict = {
        "names": ("cat", "dog"),
        "negatives": ("sofa",),
        "id_anchors": unit(2, 8),
        "ood_anchors": unit(1, 8, seed=1),
    }
    return LabelSpace(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ()}, "expected at least one known name"),
        ({"names": ("cat", "cat")}, "expected distinct names, got \\['cat'\\] more than once"),
        ({"names": ("cat", " ")}, "expected names without blanks"),
        ({"names": ("cat", 7)}, "expected names as strings, got 7; write '7'"),
        ({"names": list(torch.eye(2, 512))}, "^expected names as strings, got Tensor; pass the words themselves$"),
        ({"names": "cat"}, "got one string"),
        ({"negatives": ("cat",)}, "expected negatives that are not known names, got \\['cat'\\]"),
        ({"id_anchors": unit(3, 8)}, "expected id_anchors of shape \\[2, 8\\], one row per name, got \\[3, 8\\]"),
        ({"ood_anchors": unit(1, 9)}, "expected ood_anchors of shape \\[1, 8\\]"),
        ({"id_anchors": 2 * unit(2, 8)}, "expected unit rows in id_anchors, got a norm of 2"),
        ({"id_anchors": unit(2, 8) * torch.nan}, "expected finite id_anchors"),
        ({"id_anchors": torch.ones(2, 8, dtype=torch.int64)}, "expected floating-point id_anchors"),
    ],
)
def test_what_makes_no_label_space_is_refused(changes, message):
    with pytest.raises(LabelError, match=message):
        build(**changes)


def test_half_precision_rows_become_exactly_unit():
    labels = build(id_anchors=unit(2, 8).half(), ood_anchors=unit(1, 8).half())
    assert labels.id_anchors.dtype == torch.float32
    torch.testing.assert_close(labels.id_anchors.norm(dim=1), torch.ones(2))


def test_the_fingerprint_follows_everything_that_can_move_a_score():
    base = build()
    assert base.fingerprint == build().fingerprint
    others = [
        build(names=("cat", "cow")),
        build(negatives=("couch",)),
        build(id_anchors=unit(2, 8, seed=5)),
        build(ood_anchors=unit(1, 8, seed=5)),
        build(prompt="a {}"),
        build(encoder="x"),
        build(manifest={"miner": "csp"}),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


def test_a_label_space_survives_its_file(tmp_path):
    labels = build(prompt="a {}", encoder="tiny", manifest={"miner": "neglabel"})
    labels.save(tmp_path / "space.safetensors")
    again = LabelSpace.load(tmp_path / "space.safetensors")
    assert again.fingerprint == labels.fingerprint
    assert (again.names, again.negatives, again.prompt, again.manifest) == (
        labels.names,
        labels.negatives,
        labels.prompt,
        labels.manifest,
    )


def test_a_label_space_can_keep_its_first_negatives_or_none():
    labels = space()
    assert len(labels.with_negatives(4).negatives) == 4
    assert labels.with_negatives(0).ood_anchors.shape == (0, labels.dim)
    assert "6 names + 30 negatives, d=16" in repr(labels)


def test_a_label_space_of_version_0_1_is_read():
    labels = LabelSpace.load(VERSION_0_1 / "space.safetensors")
    assert (len(labels.names), len(labels.negatives), labels.dim) == (6, 30, 16)
    assert labels.fingerprint == "103479868c9a2e56c7f7e5b3dbbdca8876a76126c8456b9e60a134b6537cb932"
