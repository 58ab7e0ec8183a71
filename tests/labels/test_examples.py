from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space, unit
from helpers.tiny_text import HashEncoder
from unseen import LabelSpace
from unseen.errors import DataError, EncoderError
from unseen.features import Features
from unseen.labels import Corpus, Examples, with_examples
from unseen.labels.moving import Rows, choose, fitted, losses, nearest_negatives


def drawn(labels: LabelSpace, shots: int, *, seed: int = 0, shift: float = 0.6) -> Examples:
    """Return examples around points that lie apart from the text of each name, as images do."""
    generator = torch.Generator().manual_seed(seed)
    names, width = len(labels.names), labels.dim
    centres = normalize(labels.id_anchors.float() + shift * unit(names, width, seed=7).float(), dim=1)
    label = torch.arange(names).repeat_interleave(shots)
    noise = 0.3 * torch.randn(len(label), width, generator=generator) / math.sqrt(width)
    return Examples(normalize(centres[label] + noise, dim=1), label)


def test_losses_equal_the_formula_of_one_example() -> None:
    known, negative = torch.eye(3)[:2], torch.eye(3)[2:]
    z = normalize(torch.tensor([[0.6, 0.59, 0.58]]), dim=1)
    a, b, c = (z[0] / 0.01).tolist()
    cross_entropy = math.log(math.exp(a - b) + 1 + math.exp(c - b)) - 0.0  # of name 1: log sum - b
    as_unknown = math.log1p(math.exp(a - c))  # name 0 against the negative
    got = losses(Rows(known, negative), Examples(z, torch.tensor([1])))
    assert float(got) == pytest.approx(cross_entropy + 0.5 * as_unknown, rel=1e-4)


def test_residuals_lower_the_loss_of_examples_that_were_left_out() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    examples = drawn(labels, 4)
    rows = Rows(labels.id_anchors, labels.ood_anchors)
    kept, left_out = examples.folds(4)[0]
    assert float(losses(fitted(rows, kept, 100.0), left_out).mean()) < float(losses(rows, left_out).mean())
    moved = with_examples(labels, examples)
    assert moved.manifest["examples_penalty"] != "inf"
    assert not torch.equal(moved.id_anchors, labels.id_anchors)
    torch.testing.assert_close(moved.id_anchors.norm(dim=1), torch.ones(8))


def test_examples_with_wrong_names_move_nothing() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    examples = drawn(labels, 4)
    shuffled = examples.label[torch.randperm(32, generator=torch.Generator().manual_seed(1))]
    moved = with_examples(labels, Examples(unit(32, 24, seed=5), shuffled))
    assert moved.manifest["examples_penalty"] == "inf"
    assert torch.equal(moved.id_anchors, labels.id_anchors)
    assert torch.equal(moved.ood_anchors, labels.ood_anchors)


def test_one_example_cannot_be_judged_and_moves_nothing() -> None:
    labels = space(4, 10, 16, dtype=torch.float32)
    one = Examples(unit(1, 16), torch.tensor([2]))
    assert choose(Rows(labels.id_anchors, labels.ood_anchors), one).penalty == math.inf


def test_a_name_without_examples_keeps_its_text() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    every = drawn(labels, 4)
    moved = with_examples(labels, every[every.label < 7])
    cosine = (moved.id_anchors * labels.id_anchors).sum(1)
    assert float(cosine[7]) == pytest.approx(1, abs=1e-6)
    assert float(cosine[:7].min()) < 1 - 1e-5


def test_only_the_nearest_negatives_move() -> None:
    labels = space(3, 40, 16, dtype=torch.float32)
    near = nearest_negatives(labels, drawn(labels, 2), most=5)
    assert len(near) == 5
    largest = (drawn(labels, 2).z @ labels.ood_anchors.T).amax(0)
    assert set(near.tolist()) == set(largest.topk(5).indices.tolist())


def test_folds_leave_out_every_example_once_and_count_places() -> None:
    examples = Examples(unit(6, 4), torch.tensor([1, 0, 1, 1, 0, 2]))
    assert examples.place.tolist() == [0, 0, 1, 2, 1, 0]
    divisions = examples.folds(4)
    assert len(divisions) == 3
    assert sum(len(left_out) for _, left_out in divisions) == 6
    assert all(len(kept) + len(left_out) == 6 for kept, left_out in divisions)
    single = Examples(unit(3, 4), torch.tensor([0, 1, 2])).folds(4)
    assert [len(left_out) for _, left_out in single] == [2, 1]


def test_one_of_four_examples_of_a_name_is_spared_for_the_threshold() -> None:
    examples = Examples(unit(7, 4), torch.tensor([0, 0, 0, 0, 1, 1, 1]), tuple("abcdefg"))
    kept, left_out = examples.for_threshold()
    assert kept.keys == ("a", "b", "c", "e", "f", "g")
    assert left_out.keys == ("d",)


def test_examples_travel_with_the_label_space_and_its_fingerprint(tmp_path: Path) -> None:
    labels = space(4, 10, 16, dtype=torch.float32)
    taught = with_examples(labels, drawn(labels, 3))
    taught.save(tmp_path / "space.safetensors")
    loaded = LabelSpace.load(tmp_path / "space.safetensors")
    assert loaded.fingerprint == taught.fingerprint
    assert torch.equal(loaded.examples.z, taught.examples.z)
    others = replace(taught, examples=replace(taught.examples, z=taught.examples.z.flip(0)))
    assert others.fingerprint != taught.fingerprint


def test_build_takes_examples(tmp_path: Path) -> None:
    encoder = HashEncoder()
    words = Corpus("small", {"noun.act": tuple(f"act {i}" for i in range(9))})
    examples = Examples(unit(2, encoder.dim), torch.tensor([0, 1]), encoder=encoder.fingerprint)
    built = LabelSpace.build(["cat", "dog"], encoder, corpus=words, cache=tmp_path, examples=examples)
    assert len(built.examples) == 2
    with pytest.raises(EncoderError, match="expected examples of the encoder of this label space"):
        LabelSpace.build(
            ["cat", "dog"], encoder, corpus=words, cache=tmp_path, examples=replace(examples, encoder="other")
        )


def features(classes: tuple[str, ...], labels: Tensor) -> Features:
    return Features(unit(len(labels), 16), tuple(f"{i}.png" for i in range(len(labels))), labels, classes, name="known")


def test_classes_of_features_are_matched_by_name() -> None:
    found = Examples.of(features(("Sports_car", "cat"), torch.tensor([0, 1, 1])), ("cat", "dog", "sports car"))
    assert found.label.tolist() == [2, 0, 0]
    with pytest.raises(DataError, match="expected examples of known names in known, got 'cow', which is not among"):
        Examples.of(features(("cow",), torch.tensor([0])), ("cat", "dog"))


@pytest.mark.parametrize(
    ("z", "label", "message"),
    [
        (unit(2, 4), torch.tensor([0]), "one index of a known name for each"),
        (unit(2, 4), torch.tensor([0.0, 1.0]), "one index of a known name for each"),
        (2 * unit(2, 4), torch.tensor([0, 1]), "expected unit features of examples"),
        (unit(2, 4) * math.nan, torch.tensor([0, 1]), "expected unit features of examples"),
    ],
)
def test_what_are_no_examples_is_refused(z: Tensor, label: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Examples(z, label)


def test_examples_that_do_not_fit_the_names_are_refused() -> None:
    labels = space(3, 10, 16)
    with pytest.raises(DataError, match="expected at least one example"):
        with_examples(labels, Examples(unit(0, 16), torch.tensor([], dtype=torch.long)))
    with pytest.raises(DataError, match="expected labels of examples from 0 to 2"):
        with_examples(labels, Examples(unit(2, 16), torch.tensor([0, 3])))
    with pytest.raises(EncoderError, match="expected examples of width 16 as of this label space, got 8"):
        with_examples(labels, Examples(unit(2, 8), torch.tensor([0, 1])))


def test_images_that_are_examples_as_well_are_found() -> None:
    examples = Examples(unit(3, 16), torch.tensor([0, 1, 2]))
    stream = torch.cat([examples.z[:1], unit(4, 16, seed=9).float()])
    assert examples.repeated(stream).tolist() == [True, False, False, False, False]
