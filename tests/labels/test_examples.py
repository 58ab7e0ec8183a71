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
from unseen.labels import Examples, with_examples
from unseen.labels.residuals import (
    TextRows,
    choose_penalty,
    fit_rows,
    losses,
    nearest_negatives,
    shift_names,
)


def drawn(labels: LabelSpace, shots: int, *, seed: int = 0, shift: float = 0.6) -> Examples:
    """Examples around points that lie apart from the text of each name, as images do."""
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
    got = losses(TextRows(known, negative), Examples(z, torch.tensor([1])))
    assert float(got) == pytest.approx(cross_entropy + 0.5 * as_unknown, rel=1e-4)


def test_residuals_lower_the_loss_of_examples_that_were_left_out() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    examples = drawn(labels, 4)
    rows = TextRows(labels.id_anchors, labels.ood_anchors)
    kept, left_out = examples.folds(4, names=8)[0]
    assert float(losses(fit_rows(rows, kept, 100.0), left_out).mean()) < float(losses(rows, left_out).mean())
    moved = with_examples(labels, examples)
    assert moved.manifest["examples_penalty"] != "inf"
    assert not torch.equal(moved.id_anchors, labels.id_anchors)
    torch.testing.assert_close(moved.id_anchors.norm(dim=1), torch.ones(8))


def test_examples_with_wrong_names_move_nothing() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    wrong = Examples(unit(32, 24, seed=5), torch.arange(8).repeat(4))
    assert choose_penalty(TextRows(labels.id_anchors, labels.ood_anchors), wrong).penalty == math.inf


def test_examples_of_shuffled_names_are_not_used_at_all() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    examples = drawn(labels, 4)
    shuffled = examples.label[torch.randperm(32, generator=torch.Generator().manual_seed(1))]
    refused = with_examples(labels, Examples(examples.z, shuffled))
    assert refused.examples is None
    assert refused.manifest["examples_refused"] == "32"
    assert torch.equal(refused.id_anchors, labels.id_anchors)
    tenth = examples.label.clone()
    tenth[::10] = (tenth[::10] + 1) % 8
    assert with_examples(labels, Examples(examples.z, tenth)).examples is not None


def test_examples_that_agree_with_each_other_are_used_whatever_their_names_say() -> None:
    labels = space(8, 40, 24, dtype=torch.float32)
    examples = drawn(labels, 4)
    assert with_examples(labels, Examples(examples.z, (examples.label + 3) % 8)).examples is not None


def test_fewer_than_eight_examples_cannot_judge_each_other_and_move_nothing() -> None:
    labels = space(4, 10, 16, dtype=torch.float32)
    rows, examples = TextRows(labels.id_anchors, labels.ood_anchors), drawn(labels, 2)
    assert choose_penalty(rows, examples).penalty < math.inf
    assert choose_penalty(rows, examples[torch.arange(8) < 7]).penalty == math.inf
    assert choose_penalty(rows, examples[torch.arange(8) < 1]).penalty == math.inf


@pytest.mark.parametrize("shots", [2, 40])
def test_many_examples_of_a_single_name_cannot_say_how_the_others_fare_and_move_nothing(shots: int) -> None:
    labels = space(4, 10, 16, dtype=torch.float32)
    every = drawn(labels, shots)
    moved = with_examples(labels, every[every.label == 2])
    assert moved.manifest["examples_penalty"] == "inf"
    assert torch.equal(moved.id_anchors, labels.id_anchors)
    assert len(moved.examples) == min(shots, 5)


def test_a_name_has_at_most_five_times_as_many_examples_as_the_others_and_one() -> None:
    examples = Examples(unit(26, 16), torch.tensor([0] * 23 + [1, 1, 2]))
    assert examples.balanced(3).counts(3).tolist() == [12, 2, 1]  # 5 (1 + 1.5) are 12.5, of which 12 are below
    assert len(examples.balanced(1)) == 26
    even = Examples(unit(40, 16), torch.arange(2).repeat(20))
    assert len(even.balanced(2)) == 40


def test_names_without_examples_are_right_no_less_often() -> None:
    labels = space(16, 40, 24, dtype=torch.float32)
    every, fresh = drawn(labels, 4), drawn(labels, 20, seed=1)
    moved = with_examples(labels, every[every.label < 8])
    assert moved.manifest["examples_penalty"] != "inf"
    before, after = (((fresh.z @ one.id_anchors.T).argmax(1) == fresh.label).double() for one in (labels, moved))
    has_some = fresh.label < 8
    assert float(after[has_some].mean()) >= float(before[has_some].mean())
    assert float(after[~has_some].mean()) >= float(before[~has_some].mean()) - 0.01


def test_names_without_examples_are_shifted_towards_the_mean_example() -> None:
    rows = TextRows(torch.eye(4)[:2], torch.eye(4)[2:])
    examples = Examples(torch.eye(4)[3:], torch.tensor([0]))
    got = shift_names(rows, examples, 0.1)
    assert torch.equal(got.known[0], rows.known[0])
    assert float(got.known[1, 3]) == pytest.approx(0.1, abs=1e-3)
    assert torch.equal(got.negative, rows.negative)


def test_only_the_nearest_negatives_move() -> None:
    labels = space(3, 40, 16, dtype=torch.float32)
    near = nearest_negatives(labels, drawn(labels, 2), most=5)
    assert len(near) == 5
    largest = (drawn(labels, 2).z @ labels.ood_anchors.T).amax(0)
    assert set(near.tolist()) == set(largest.topk(5).indices.tolist())


def test_copies_count_once_and_an_image_under_two_names_for_none() -> None:
    z = unit(4, 16).float()
    copied = torch.cat([z, z[:1], z[3:]])
    examples = Examples(copied, torch.tensor([0, 0, 1, 1, 0, 0]), tuple("abcdef"))
    assert examples.without_copies().keys == ("a", "b", "c")  # e is a again; d and f are one image of two names
    labels = space(2, 10, 16, dtype=torch.float32)
    taught = with_examples(labels, examples)
    assert (taught.examples.keys, taught.spared.keys) == (("a", "c"), ("b",))
    with pytest.raises(DataError, match="expected examples that show one name each, got 2 copies under several names"):
        with_examples(labels, Examples(copied[[0, 0]], torch.tensor([0, 1])))


def test_the_last_example_of_each_name_with_two_is_spared_for_the_threshold_and_one_of_eight_of_many() -> None:
    few = Examples(unit(8, 4), torch.tensor([0, 0, 0, 1, 1, 2, 0, 0]), tuple("abcdefgh"))
    kept, left_out = few.for_threshold()
    assert left_out.keys == ("e", "h")
    assert kept.keys == ("a", "b", "c", "d", "f", "g")
    assert Examples(unit(48, 4), torch.arange(48) % 3).for_threshold().left_out.label.tolist() == [0, 1, 2, 0, 1, 2]
    many = Examples(unit(2_400, 4), torch.arange(2_400) % 600).for_threshold().left_out
    assert len(many) == 200
    assert int(many.label.diff().max()) == 3  # evenly
    assert len(Examples(unit(3, 4), torch.arange(3)).for_threshold().left_out) == 0


def test_examples_travel_with_the_label_space_and_its_fingerprint(tmp_path: Path) -> None:
    labels = space(4, 10, 16, dtype=torch.float32)
    taught = with_examples(labels, drawn(labels, 3))
    taught.save(tmp_path / "space.safetensors")
    loaded = LabelSpace.load(tmp_path / "space.safetensors")
    assert loaded.fingerprint == taught.fingerprint
    assert torch.equal(loaded.examples.z, taught.examples.z)
    sparing = with_examples(labels, drawn(labels, 16))
    assert (len(sparing.examples), len(sparing.spared)) == (56, 8)
    one = with_examples(labels, Examples(sparing.examples.z[:5], torch.zeros(5, dtype=torch.int64)))
    assert one.spared is None  # of one name of four
    sparing.save(tmp_path / "space.safetensors")
    assert LabelSpace.load(tmp_path / "space.safetensors").fingerprint == sparing.fingerprint
    assert replace(sparing, spared=None).fingerprint != sparing.fingerprint
    others = replace(taught, examples=replace(taught.examples, z=taught.examples.z.flip(0)))
    assert others.fingerprint != taught.fingerprint


def test_build_takes_examples(tmp_path: Path) -> None:
    encoder = HashEncoder()
    examples = Examples(unit(2, encoder.dim), torch.tensor([0, 1]), encoder=encoder.fingerprint)
    built = LabelSpace.build(["cat", "dog"], encoder, everyday=9, cache=tmp_path, examples=examples)
    assert len(built.examples) == 2
    with pytest.raises(EncoderError, match="expected examples of the encoder of this label space"):
        LabelSpace.build(["cat", "dog"], encoder, cache=tmp_path, examples=replace(examples, encoder="other"))


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
