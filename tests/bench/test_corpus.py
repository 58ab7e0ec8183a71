from __future__ import annotations

from pathlib import Path

import pytest

from unseen.encoders.offline.text import TextHead, WordTable
from unseen.errors import LabelError
from unseen_bench.mining import synset_names, vocabulary, word_list
from unseen_bench.mining.corpus import distinct_words
from unseen_bench.mining.miners import CSP_EXCLUDED, EXCLUDED
from unseen_bench.mining.mining import Words


def test_the_corpus_has_its_twenty_nine_lists_and_keeps_them_in_order() -> None:
    corpus = synset_names()
    assert [len(corpus.without(left_out).lists) for left_out in ([], EXCLUDED, CSP_EXCLUDED)] == [29, 27, 23]
    assert list(corpus.lists) == sorted(corpus.lists)
    assert "tench" in corpus.lists["noun.animal"]
    assert "striped" in corpus.lists["adj.all"]
    assert not any("(" in word[-4:] for word in corpus.lists["adj.all"])  # no (p), (a), (ip)


def test_the_first_words_of_synsets_make_the_corpus_of_seventy_thousand() -> None:
    corpus = synset_names().without(EXCLUDED)
    words = Words.of(corpus, ())
    assert (len(words.nouns), len(words.adjectives)) == (56_776, 14_020)
    assert corpus.fingerprint.startswith("50051c01a4e30f9e")
    assert "domestic dog" not in synset_names().lists["noun.animal"]  # the synset is called dog


def test_leaving_out_a_list_changes_the_fingerprint_and_an_unknown_list_is_refused() -> None:
    assert synset_names().without(["noun.plant"]).fingerprint != synset_names().fingerprint
    with pytest.raises(LabelError, match=r"noun\.dragon"):
        synset_names().without(["noun.dragon"])


def test_spellings_of_one_word_count_once_and_known_names_never() -> None:
    assert distinct_words(["Cat", "cat", "ice-cream", "ice cream", "dog"], {"dog"}) == [0, 2]


def test_an_own_list_is_a_corpus_of_nouns(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a\nb\n")
    assert word_list(tmp_path / "mine.txt").lists == {"noun.own": ("a", "b")}
    (tmp_path / "none.txt").write_text("# only this\n")
    with pytest.raises(LabelError, match="got none"):
        word_list(tmp_path / "none.txt")


def test_the_offline_encoder_has_the_vector_of_every_word_of_the_vocabulary() -> None:
    """Else a stand-in for CIFAR would begin with minutes of encoding."""
    table = WordTable.load(TextHead.load())
    assert table is not None
    (words,) = vocabulary().lists.values()
    assert len(words) > 30_000
    assert {word.lower() for word in words} <= set(table.place)
