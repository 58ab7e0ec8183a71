from __future__ import annotations

import hashlib

import pytest
import torch
from torch.nn.functional import normalize

from unseen.encoders.offline import codes
from unseen.encoders.offline.codes import TextCodes
from unseen.encoders.offline.text import SHA256, TextHead, TextTower, load_text_tower, wheel_files
from unseen.errors import EncoderError
from unseen.labels import wordnet


@pytest.fixture(scope="module")
def shipped() -> TextCodes:
    return TextCodes.load()


def no_sentences(texts: object) -> torch.Tensor:
    raise AssertionError("the sentence encoder is not needed")


def test_the_shipped_codes_belong_to_the_shipped_text_tower_and_corpus(shipped: TextCodes) -> None:
    tower = TextTower(no_sentences, TextHead.load(), weights=SHA256["model.safetensors"])
    assert shipped.text_fingerprint == tower.fingerprint
    assert shipped.manifest["corpus_sha256"] == wordnet().fingerprint
    assert tower.coarse(["The nice umbrella."]).shape == (1, 512)


def test_every_word_of_the_corpus_has_a_code_of_its_own(shipped: TextCodes) -> None:
    words = {word.lower() for words in wordnet().lists.values() for word in words}
    places = shipped.find(sorted(words))
    assert len(words) == shipped.manifest["words"] == len(shipped.codes)
    assert places.min() == 0
    assert len(places.unique()) == len(words)


def test_case_does_not_matter_and_other_names_have_no_code(shipped: TextCodes) -> None:
    upper, lower, other = shipped(["UMBRELLA", "umbrella", "a name that is in no list"])
    torch.testing.assert_close(upper, lower, rtol=0, atol=0)
    assert upper.isfinite().all()
    assert other.isnan().all()


def test_the_file_is_at_most_12_megabytes() -> None:
    assert codes.CODES.stat().st_size <= 12_000_000


def test_codes_of_another_tower_are_refused() -> None:
    tower = TextTower(no_sentences, TextHead.load(), weights="other")
    with pytest.raises(EncoderError, match="expected codes of the text tower"):
        tower.coarse(["The nice cat."])


def test_hashes_are_the_same_on_every_machine() -> None:
    digest = hashlib.blake2b(b"cat", digest_size=4, key=(5).to_bytes(8, "big")).digest()
    assert codes.hash_names(["Cat"], salt=5).tolist() == [int.from_bytes(digest, "big", signed=True)]


def test_cosines_of_coarse_vectors_are_as_near_as_the_manifest_says(shipped: TextCodes) -> None:
    if not all(file.path.is_file() for file in wheel_files().values()):
        pytest.skip("the offline text tower is not fetched; run: unseen models fetch offline")
    words = [word for words in wordnet().lists.values() for word in words[::1500]]
    exact = normalize(load_text_tower()(words), dim=-1)
    errors = (shipped(words) - exact) @ exact.T
    assert errors.square().mean().sqrt() < 1.5 * shipped.cosine_error
