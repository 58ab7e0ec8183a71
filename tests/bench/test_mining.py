from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_text import HashEncoder
from unseen import LabelSpace
from unseen.errors import LabelError, SettingError
from unseen_bench.mining import MINERS, Corpus, mine
from unseen_bench.mining.miners import by_density, quantile, quantile_duplicates_last, sorted_cosine

WORDS = Corpus(
    "small",
    {
        "adj.all": tuple(f"adjective {i}" for i in range(20)),
        "noun.act": tuple(f"act {i}" for i in range(30)),
        "noun.plant": tuple(f"plant {i}" for i in range(50)),
    },
)
NAMES = ["cat", "dog", "fox"]


def build(cache: Path, encoder: HashEncoder | None = None, **options: object) -> LabelSpace:
    settings: dict[str, object] = {"corpus": WORDS, "negatives": 20, "cache": cache} | options
    return mine(NAMES, encoder or HashEncoder(), **settings)  # type: ignore[arg-type]


def random_cosines(rows: int, known: int, seed: int) -> Tensor:
    return torch.rand(rows, known, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 999))
def test_quantile_and_sorted_cosine_equal_numpy_in_float64(rows: int, known: int, seed: int) -> None:
    cosines = random_cosines(rows, known, seed)
    np.testing.assert_allclose(quantile(cosines), np.quantile(cosines.numpy(), 0.95, axis=1), atol=1e-12)
    index = min(int(0.95 * known), known - 1)
    np.testing.assert_allclose(sorted_cosine(cosines), np.sort(cosines.numpy(), axis=1)[:, index], atol=0)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["neglabel", "adaneg", "csp"]), st.integers(1, 60), st.integers(0, 99))
def test_mining_equals_brute_force_over_all_words_at_once(
    tmp_path_factory: pytest.TempPathFactory, miner: str, count: int, seed: int
) -> None:
    encoder, rule = HashEncoder(fingerprint=f"h{seed}"), MINERS[miner]
    space = build(tmp_path_factory.getbasetemp() / "brute", encoder, miner=miner, negatives=count)
    criterion = {"neglabel": _numpy_quantile, "adaneg": _numpy_sorted, "csp": _numpy_csp}[miner]
    anchors = rule.prompt.encode(NAMES, encoder).double()
    expected: set[str] = set()
    kept = [len([n for n in space.negatives if n.startswith("adjective")])]
    kept.append(count - kept[0])
    nouns = [*WORDS.lists["noun.act"], *WORDS.lists["noun.plant"]]
    for words, prompt, number in zip(
        (WORDS.lists["adj.all"], nouns), (rule.adjective_prompt, rule.prompt), kept, strict=True
    ):
        rows = torch.nn.functional.normalize(prompt.encode(words, encoder).half().double(), dim=-1)
        ranks = criterion((rows @ anchors.T).numpy())
        expected |= {words[i] for i in np.argsort(ranks, kind="stable")[:number]}
    assert set(space.negatives) == expected
    assert kept[0] == round(count * 20 / 100)


def _numpy_quantile(cosines: np.ndarray) -> np.ndarray:
    return np.quantile(cosines, 0.95, axis=1)


def _numpy_sorted(cosines: np.ndarray) -> np.ndarray:
    return np.sort(cosines, axis=1)[:, min(int(0.95 * cosines.shape[1]), cosines.shape[1] - 1)]


def _numpy_csp(cosines: np.ndarray) -> np.ndarray:
    return np.where(cosines.max(1) > 0.95, 10, 0) + _numpy_quantile(cosines)


def test_csp_ranks_a_duplicate_of_a_name_last_even_if_it_is_far_from_the_others() -> None:
    twin, plain = [-1.0] * 30 + [0.99], [0.5] * 31
    cosines = torch.tensor([twin, plain])
    assert quantile(cosines)[0] < quantile(cosines)[1]
    assert quantile_duplicates_last(cosines)[0] > quantile_duplicates_last(cosines)[1]


def test_dnm_ranks_by_mean_log_distance_to_the_nearest_words() -> None:
    rows = HashEncoder(dim=4).texts([f"word {i}" for i in range(130)])
    found = by_density(rows, rows[:1])
    exact = rows.half().double()
    distance = torch.cdist(exact, exact).fill_diagonal_(torch.inf)
    expected = distance.sort(1).values[:, :100].log().mean(1)
    torch.testing.assert_close(found.double(), expected, atol=5e-3, rtol=0)


def test_every_choice_changes_the_fingerprint(tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [{}, *({"miner": name} for name in ("adaneg", "csp", "dnm"))]
    choices += [{"negatives": 21}, {"prompt": "a photo of a {}."}]
    choices += [{"encoder": HashEncoder(fingerprint="hash-2")}, {"negatives": None}]
    assert len({build(tmp_path, **one).fingerprint for one in choices}) == len(choices)


def test_the_number_of_negatives_follows_the_share_or_the_count(tmp_path: Path) -> None:
    assert len(build(tmp_path, negatives=None).negatives) == int(0.15 * 80) + int(0.15 * 20)
    assert len(build(tmp_path, negatives=None, miner="dnm").negatives) == int(0.23 * 80) + int(0.13 * 20)
    assert len(build(tmp_path, negatives=None, miner="neglabel").negatives) == 100  # a list of one's own is meant
    assert len(build(tmp_path, negatives=10_000).negatives) == 100  # at most what there is
    assert build(tmp_path, negatives=0).negatives == ()
    half = build(tmp_path, negatives=50).with_negatives(10).negatives
    assert sum(word.startswith("adjective") for word in half) == 2  # a prefix keeps the mix


def test_known_names_are_never_negatives_whatever_their_spelling(tmp_path: Path) -> None:
    corpus = Corpus("own", {"noun.own": ("Cat", "ice-cream", "tree")})
    space = mine(["cat", "ice cream"], HashEncoder(), corpus=corpus, cache=tmp_path)
    assert space.negatives == ("tree",)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="vocabulary, neglabel, online, adaneg"):
        build(tmp_path, miner="gold")
    with pytest.raises(LabelError, match="at least 0"):
        build(tmp_path, negatives=-3)
    for names, says in (([], "at least one"), (["a", "a"], "more than once"), ("cat", "one string")):
        with pytest.raises(LabelError, match=says):
            mine(names, HashEncoder(), corpus=WORDS, cache=tmp_path)
    with pytest.raises(LabelError, match="expected words besides the known names in own, got none"):
        build(tmp_path, corpus=Corpus("own", {"noun.a": ("cat", "fox")}))
