from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from helpers import tiny_text
from helpers.inline_ray import InlineRay
from helpers.tiny_text import HashEncoder
from unseen import LabelSpace
from unseen.cli import mine as command
from unseen.errors import EncoderError
from unseen.labels import MINERS, Corpus, MiningSpec, vectors
from unseen.scale import cluster
from unseen.scale import mine as scaled

WORDS = Corpus(
    "small",
    {
        "adj.all": tuple(f"adjective {i}" for i in range(40)),
        "noun.act": tuple(f"act {i}" for i in range(60)),
        "noun.plant": tuple(f"plant {i}" for i in range(50)),
    },
)
SPACES = {"pets": ["cat", "dog"], "plants": ["plant 3", "Act_7", "tree"], "one": ["boat"]}


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> InlineRay:
    ray = InlineRay()
    monkeypatch.setattr(cluster, "module", lambda: ray)
    monkeypatch.setattr(vectors, "CHUNK", 7)
    return ray


def options(miner: str) -> dict[str, Any]:
    return {"negatives": 30, "prompt": None, "corpus": WORDS, "excluded": None, "miner": miner}


def same_as_local(made: dict[str, LabelSpace], cache: Path, miner: str) -> None:
    assert list(made) == list(SPACES)
    for name, names in SPACES.items():
        local = LabelSpace.build(names, HashEncoder(), cache=cache, **options(miner))
        assert made[name].manifest == local.manifest
        assert made[name].negatives == local.negatives
        assert made[name].fingerprint == local.fingerprint


@pytest.mark.parametrize("miner", MINERS)
def test_mining_on_a_cluster_gives_the_fingerprint_of_the_local_miner(
    inline: InlineRay, tmp_path: Path, miner: str
) -> None:
    spec = MiningSpec.of(**options(miner))
    seen: list[tuple[int, int]] = []
    progress = lambda *at: seen.append(at)  # noqa: E731
    made = dict(scaled.mine(inline, SPACES, HashEncoder, spec, workers=3, cache=tmp_path / "ray", progress=progress))
    same_as_local(made, tmp_path / "local", miner)
    assert (seen[0], seen[-1]) == ((0, len(spec.corpus)), (len(spec.corpus), len(spec.corpus)))
    assert inline.started == inline.killed == 3


def test_the_cluster_and_the_local_miner_share_one_cache_of_vectors(inline: InlineRay, tmp_path: Path) -> None:
    spec = MiningSpec.of(**options("neglabel"))
    list(scaled.mine(inline, SPACES, HashEncoder, spec, cache=tmp_path))
    encoder = HashEncoder()
    LabelSpace.build(["cat"], encoder, cache=tmp_path, **options("neglabel"))
    assert encoder.encoded == 1  # the name alone
    seen: list[tuple[int, int]] = []
    list(scaled.mine(inline, SPACES, HashEncoder, spec, cache=tmp_path, progress=lambda *at: seen.append(at)))
    assert seen == [(150, 150)]


def test_nodes_with_different_models_are_refused_and_actors_stopped(inline: InlineRay, tmp_path: Path) -> None:
    prints = iter("ab")
    load = lambda: HashEncoder(fingerprint=next(prints))  # noqa: E731
    inline.seen = lambda argument: argument  # type: ignore[method-assign]
    with pytest.raises(EncoderError, match="same model files"):
        list(scaled.mine(inline, SPACES, load, MiningSpec.of(**options("neglabel")), cache=tmp_path))
    assert inline.killed == 2


class Dies(HashEncoder):
    """An encoder whose process ends in the middle, once."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def texts(self, prompts: Any) -> Any:
        if any("plant 20" in prompt for prompt in prompts) and not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return super().texts(prompts)


@pytest.fixture
def shipped(ray: Any) -> Any:
    """Ray, told to send these modules along: workers cannot import from the tests."""
    for module in (tiny_text, sys.modules[__name__]):
        ray.cloudpickle.register_pickle_by_value(module)
    return ray


@pytest.mark.ray
def test_an_encoder_that_dies_changes_no_label_space(
    shipped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "CHUNK", 7)
    load = partial(Dies, tmp_path / "died")
    made = dict(scaled.mine(shipped, SPACES, load, MiningSpec.of(**options("csp")), workers=2, cache=tmp_path / "ray"))
    assert (tmp_path / "died").exists()
    same_as_local(made, tmp_path / "local", "csp")


@pytest.mark.ray
def test_the_command_gives_the_same_space_on_ray(shipped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "load_encoder", tiny_text.hashed)
    (tmp_path / "words.txt").write_text("\n".join(f"word {i}" for i in range(50)))
    app = typer.Typer()
    app.command()(command.mine)
    prints = []
    for how in (("--ray", "local", "--workers", "1"), ()):
        asked = ["--label", "cat", "--words", "words.txt", "--json", *how]
        result = CliRunner().invoke(app, asked, catch_exceptions=False)
        prints.append(json.loads(result.stdout)["fingerprint"])
    assert prints[0] == prints[1]
