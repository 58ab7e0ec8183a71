from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.tiny_text import HashEncoder
from unseen import LabelSpace, detectors, load_encoder
from unseen.encoders.offline import encoder as offline
from unseen.labels import Corpus, vectors, wordnet
from unseen.labels.prompts import NICE
from unseen.labels.shortlist import coarse_corpus
from unseen.labels.vectors import CorpusPrompts, chunk_corpus
from unseen.storage.files import save_tensors
from unseen_bench import suites
from unseen_bench.evaluate import evaluate

WORDS = Corpus(
    "small",
    {"adj.all": tuple(f"adjective {i}" for i in range(100)), "noun.act": tuple(f"act {i}" for i in range(900))},
)
NAMES = ["cat", "dog", "fox"]


class CoarseHashEncoder(HashEncoder):
    """A hash encoder that has approximate vectors of all texts but those with a certain word."""

    coarse_error = 0.01

    def __init__(self, without: str = "no such word") -> None:
        super().__init__(dim=16)
        self.without = without

    def coarse_texts(self, prompts: Sequence[str]) -> Tensor:
        noise = torch.randn(len(prompts), self.dim, generator=torch.Generator().manual_seed(0))
        rows = torch.stack([self._row(prompt) for prompt in prompts]) + self.coarse_error * noise
        rows[torch.tensor([self.without in prompt for prompt in prompts])] = torch.nan
        return 0.9 * rows if self.without == "shrunk" else rows


def build(cache: Path, encoder: HashEncoder, **options: object) -> LabelSpace:
    return LabelSpace.build(NAMES, encoder, **{"corpus": WORDS, "negatives": 100, "cache": cache} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize("miner", ["wordnet", "adaneg", "clipscope-near", "clipscope-far"])
def test_the_shortlist_gives_the_same_negatives_and_encodes_fewer_words(tmp_path: Path, miner: str) -> None:
    encoder = CoarseHashEncoder()
    found = build(tmp_path / "a", encoder, miner=miner)
    exact = build(tmp_path / "b", CoarseHashEncoder(), miner=miner, exact=True)
    shared = set(found.negatives) & set(exact.negatives)
    assert len(found.negatives) == len(exact.negatives)
    assert len(shared) >= 0.99 * len(exact.negatives)
    assert encoder.encoded < 300


@pytest.mark.data
@pytest.mark.slow  # encodes 4,000 words
@pytest.mark.parametrize("suite", ["tin-near-0", "imagenet200"])
def test_the_shipped_codes_give_the_negatives_and_the_auroc_of_exact_mining(
    tmp_path: Path, features: Path, suite: str
) -> None:
    if not offline.is_fetched():
        pytest.skip("the offline towers are not here; run: unseen models fetch offline")
    loaded, encoder = suites.load(suite, features), load_encoder("offline")
    options = {"negatives": 2000, "corpus": wordnet().thinned(4000), "cache": tmp_path}
    spaces = [LabelSpace.build(loaded.labels.names, encoder, exact=exact, **options) for exact in (False, True)]
    coarse, exact = (set(space.negatives) for space in spaces)
    assert len(coarse & exact) >= 0.99 * len(exact)
    trial = loaded.against("near").ordered("shuffled", seed=0)
    found = [evaluate(detectors.make("pooled", space), trial).metrics["auroc"] for space in spaces]
    assert found[0] == pytest.approx(found[1], abs=5e-4)


def test_chunks_of_which_no_word_is_on_the_shortlist_are_left_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(vectors, "CHUNK", 7)
    encoder = CoarseHashEncoder()
    assert len(build(tmp_path, encoder, negatives=5).negatives) == 5
    assert encoder.encoded < 100
    assert build(tmp_path, encoder, negatives=0).negatives == ()


def test_a_list_whose_words_are_all_in_others_is_left_out(tmp_path: Path) -> None:
    corpus = Corpus("short", WORDS.lists | {"noun.quantity": ("act 1", "act 2")})
    assert len(build(tmp_path, CoarseHashEncoder(), corpus=corpus, negatives=5).negatives) == 5


def test_words_without_an_approximate_vector_are_encoded(tmp_path: Path) -> None:
    encoder = CoarseHashEncoder(without="act 7")  # and 70 to 79, 700 to 799
    found = build(tmp_path / "a", encoder)
    exact = build(tmp_path / "b", HashEncoder(dim=16))
    assert set(found.negatives) == set(exact.negatives)
    assert [word for word in exact.negatives if word.startswith("act 7")]


def test_a_corpus_has_approximate_vectors_only_if_every_word_has_one() -> None:
    encoder, prompts = CoarseHashEncoder(), CorpusPrompts(NICE, NICE)
    parts = coarse_corpus(WORDS, encoder, prompts)
    assert parts is not None
    assert [word for part in parts for word in part.words] == [*WORDS.lists["adj.all"], *WORDS.lists["noun.act"]]
    assert encoder.encoded == 0
    assert coarse_corpus(WORDS, CoarseHashEncoder(without="act 7"), prompts) is None
    assert coarse_corpus(WORDS, HashEncoder(dim=16), prompts) is None


def test_where_no_word_has_an_approximate_vector_all_are_encoded(tmp_path: Path) -> None:
    encoder = CoarseHashEncoder(without="")
    assert build(tmp_path / "a", encoder).negatives == build(tmp_path / "b", HashEncoder(dim=16)).negatives
    assert encoder.encoded == 1000 + len(NAMES)


@pytest.mark.parametrize("options", [{"exact": True}, {"miner": "dnm"}], ids=str)
def test_all_words_are_encoded_when_asked_for_or_where_ranks_depend_on_each_other(
    tmp_path: Path, options: dict[str, object]
) -> None:
    encoder = CoarseHashEncoder()
    build(tmp_path, encoder, **options)
    assert encoder.encoded == 1000 + len(NAMES)


def test_words_encoded_for_one_label_space_are_not_encoded_again_for_another(tmp_path: Path) -> None:
    build(tmp_path, CoarseHashEncoder())
    again, more = CoarseHashEncoder(), CoarseHashEncoder()
    build(tmp_path, again)
    assert again.encoded == len(NAMES)
    assert build(tmp_path, more, negatives=300).negatives == build(tmp_path / "b", more, negatives=300).negatives
    fresh = CoarseHashEncoder()
    build(tmp_path / "c", fresh, negatives=300)
    assert more.encoded < 2 * fresh.encoded


def test_vectors_that_version_01_kept_in_whole_chunks_are_read(tmp_path: Path) -> None:
    encoder = HashEncoder(dim=16)
    for chunk in chunk_corpus(WORDS, encoder, CorpusPrompts(NICE, NICE), cache=tmp_path):
        vectors = {"vectors": chunk.encode(encoder)}
        save_tensors(chunk.path, vectors, kind="text-vectors", header=chunk.header)
        assert chunk.is_cached
        torch.testing.assert_close(chunk.read([3, 1]), vectors["vectors"][[3, 1]], rtol=0, atol=0)
