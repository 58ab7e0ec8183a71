"""An explanation says what spoke for and against an image, in figures that can be recomputed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image as Pillow
from torch.nn.functional import normalize

from unseen import Session
from unseen.discover import explain
from unseen.discover.explanation import SimilarImage
from unseen.errors import FeatureError


def test_shares_are_the_softmax_of_the_frozen_text(session, pack):
    z = pack.z[550]
    found = explain(session, z, count=5)
    anchors = torch.cat([pack.space.id_anchors, pack.space.ood_anchors])
    shares = (anchors @ z / 0.01).softmax(0)
    best = shares[: len(pack.space.names)].max(0)
    assert found.names[0].word == pack.space.names[int(best.indices)]
    assert found.names[0].share == pytest.approx(float(best.values), rel=1e-4)
    assert found.known_share == pytest.approx(float(shares[: len(pack.space.names)].sum()), rel=1e-4)


def test_images_and_arrays_are_explained_as_their_features_are(session, pack, tmp_path):
    z = pack.z[550]
    found = explain(session, z)
    assert explain(session, z.numpy()) == explain(session, z[None]) == found
    with pytest.raises(FeatureError, match=r"got str; for images pass encoder.images\(...\), or make the session with"):
        explain(session, "a.jpg")
    with pytest.raises(FeatureError, match="expected one image to explain, got 2; call explain for each"):
        explain(session, pack.z[:2])
    path = tmp_path / "photo.jpg"
    Pillow.new("RGB", (8, 8)).save(path)
    session.encoder = SimpleNamespace(images=lambda images: z[None])
    try:
        assert explain(session, path).verdict == found.verdict
        assert explain(session, str(path)).key == str(path)
    finally:
        session.encoder = None


def test_the_margin_is_what_the_text_gives_and_what_the_stream_added(session, pack):
    z = pack.z[550]
    found = explain(session, z)
    fresh = Session(pack.space).score(z[None])
    assert found.verdict == session.score(z[None])[0]
    assert found.text_margin == pytest.approx(float(fresh.margin), rel=1e-5)
    assert found.text_margin + found.learned_margin == pytest.approx(found.verdict.margin)
    assert found.learned_margin != 0


def test_similar_images_are_the_nearest_kept_ones_without_the_image_itself(session, pack):
    kept = session.reservoir.images
    row = int((~kept.known).nonzero()[0])
    found = explain(session, kept.features[row], key=kept.keys[row], count=4)
    assert kept.keys[row] not in [image.key for image in found.similar]
    centred = normalize(kept.features - kept.features.mean(0), dim=1)
    cosines = centred @ centred[row]
    cosines[row] = -1
    assert [image.key for image in found.similar] == [kept.keys[i] for i in cosines.topk(4).indices.tolist()]
    assert found.similar[0].cosine == pytest.approx(float(cosines.max()), abs=2e-3)


def test_an_image_of_a_session_that_kept_nothing_is_explained_by_the_text_alone(pack):
    found = explain(Session(pack.space, keep=0), pack.z[0])
    assert found.similar == ()
    assert found.learned_margin == 0
    assert "no earlier image is kept" in found.lines()[-1]


def test_the_sentence_says_whether_similar_images_agree(session, pack):
    found = explain(session, pack.z[550])
    images = [SimilarImage(f"{i}.jpg", known, "cat", 0.5) for i, known in enumerate((True, True, False))]
    for word, similar, said in (
        ("unknown", images, "; though 2 of the 3 most similar earlier images were known"),
        ("doubtful", images, "; 2 of the 3 most similar earlier images were known"),
        ("known", images[2:], "; though the most similar earlier image was unknown"),
    ):
        verdict = found.verdict._replace(verdict=word, name=None if word == "unknown" else found.verdict.nearest)
        assert replace(found, verdict=verdict, similar=tuple(similar)).sentence().endswith(said)
