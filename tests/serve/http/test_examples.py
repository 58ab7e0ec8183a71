"""A stream is created with examples: labelled features beside names or a label space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from helpers.service import Server
from helpers.streams import space, stream
from unseen import Session
from unseen.errors import ServiceError
from unseen.features import Features, load_features
from unseen.labels import Examples, with_examples
from unseen.serve import client
from unseen.serve.settings import Limits
from unseen.threshold import Adaptive

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 40)
SHOWN = stream(LABELS, 12, seed=3)
EXAMPLES = Examples(SHOWN, (SHOWN @ LABELS.id_anchors[:3].T).argmax(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("data"), limits=Limits(batch=64)) as running:
        yield running


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    LABELS.save(tmp_path / "space.safetensors")
    return tmp_path / "space.safetensors"


def features(path: Path, *, classes: tuple[str, ...] = LABELS.names[:3], examples: Examples = EXAMPLES) -> Path:
    meta = {"classes": json.dumps(classes)}
    save_file({"features": examples.z, "labels": examples.label}, path, metadata=meta)
    return path


def test_a_stream_with_examples_judges_as_a_session_with_them(server, space_file, tmp_path):
    remote = server.client.create(space_file, examples=features(tmp_path / "known.safetensors"))
    expected = Session(with_examples(LABELS, EXAMPLES)).observe(Z)
    said = remote.observe(Z)
    assert [row["margin"] for row in said] == pytest.approx(expected.margin.tolist(), abs=1e-3)
    plain = Session(LABELS).observe(Z)
    assert [row["margin"] for row in said] != pytest.approx(plain.margin.tolist(), abs=1e-3)


def test_examples_that_cannot_be_used_are_refused_and_leave_no_stream(server, space_file, tmp_path):
    before = len(server.client.streams())
    foreign = features(tmp_path / "foreign.safetensors", classes=("no such name", "b", "c"))
    with pytest.raises(ServiceError, match=r"expected examples of known names .* got 'no such name'"):
        server.client.create(space_file, examples=foreign)
    save_file({"features": EXAMPLES.z}, tmp_path / "plain.safetensors")
    with pytest.raises(ServiceError, match="expected labelled features as examples, got no labels"):
        server.client.create(space_file, examples=tmp_path / "plain.safetensors")
    many = Examples(EXAMPLES.z.repeat(6, 1), EXAMPLES.label.repeat(6))
    with pytest.raises(ServiceError, match="expected at most 64 examples, got 72"):
        server.client.create(space_file, examples=features(tmp_path / "many.safetensors", examples=many))
    narrow = Examples(torch.eye(3), torch.arange(3))
    with pytest.raises(ServiceError, match="expected examples of width"):
        server.client.create(space_file, examples=features(tmp_path / "narrow.safetensors", examples=narrow))
    with pytest.raises(ServiceError, match="expected either names or a space, got both or neither"):
        server.client.create(examples=features(tmp_path / "known.safetensors"))
    assert len(server.client.streams()) == before


def test_spared_examples_set_the_threshold_of_a_stream(server, space_file, tmp_path):
    label = torch.arange(12) % 3
    clear = Examples(normalize(LABELS.id_anchors[label] + 0.1 * SHOWN, dim=1), label)
    expected = Session(with_examples(LABELS, clear, spare=2), Adaptive(0.6)).observe(Z)
    known = features(tmp_path / "known.safetensors", examples=clear)
    rule = {"kind": "adaptive", "settings": {"recall": 0.6}}
    remote = server.client.create(space_file, examples=known, threshold=rule)
    found = [*remote.observe(Z[:7]), *remote.observe(Z[7:])]
    assert remote.info()["threshold"]["kind"] == "examples"
    assert [row["threshold"] for row in found] == pytest.approx([one.threshold for one in expected], abs=1e-3)


def test_what_encode_wrote_for_a_folder_per_class_is_sent_as_one_file(tmp_path, monkeypatch):
    keys = tuple(f"known/{LABELS.names[i % 3]}/{i}.png" for i in range(12))
    monkeypatch.setattr(client, "load_features", lambda path: Features(SHOWN, keys, name="known"))
    (tmp_path / "sent.safetensors").write_bytes(client.example_file(tmp_path))
    sent = load_features(tmp_path / "sent.safetensors")
    assert [sent.classes[i] for i in sent.true_labels] == [LABELS.names[i % 3] for i in range(12)]
    torch.testing.assert_close(sent.z, SHOWN)
    assert sent.keys == keys
