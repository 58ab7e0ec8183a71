"""Prompt learners on a tiny random CLIP that the test builds and saves."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.amp import GradScaler

from helpers.commands import rows
from helpers.commands import run as call
from helpers.streams import unit
from helpers.tiny_models import ColourEncoder, pictures, save_clip
from unseen import LabelSpace
from unseen.encoders import load_encoder
from unseen.encoders.hub import HubEncoder
from unseen.errors import EncoderError, LabelError, SettingError
from unseen_bench.checks import check_detector
from unseen_bench.methods.prompts import (
    REGISTRY,
    LabelledBatch,
    LearnOptions,
    LSNScore,
    PromptTower,
    Training,
    encode_batch,
    learn,
)
from unseen_bench.methods.prompts.methods import CoOp, name_loss

NAMES = ("cat", "dog", "photo", "nice")
CONTEXT = 4
LABEL = [i % 4 for i in range(12)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> HubEncoder:
    made = load_encoder(save_clip(tmp_path_factory.mktemp("clip"), context=16), device="cpu", dtype=torch.float32)
    assert isinstance(made, HubEncoder)
    return made


@pytest.fixture(scope="module")
def space(encoder: HubEncoder) -> LabelSpace:
    negatives = ("the", "of", "a")
    return LabelSpace(NAMES, negatives, encoder.texts(NAMES), encoder.texts(negatives), encoder=encoder.name)


def batch(encoder: HubEncoder, needs: str = "") -> LabelledBatch:
    return encode_batch(pictures(12), LABEL, encoder, needs)


def options(method: str, **changes: float) -> LearnOptions:
    return LearnOptions(method, epochs=4, rate=0.05, batch=6, context=CONTEXT, **changes)  # type: ignore[arg-type]


def embeddings(tower: PromptTower, words: str) -> torch.Tensor:
    ids = tower.encoder.tokenizer(words, add_special_tokens=False)["input_ids"]
    return tower.embedding.weight[torch.tensor(ids)]


def test_contexts_set_to_literal_words_give_the_features_of_those_words(encoder: HubEncoder) -> None:
    tower = PromptTower(encoder)
    prompts = tower.tokens(NAMES, "a photo of a")
    got = tower.features(prompts, embeddings(tower, "a photo of a"))
    expected = encoder.texts([f"a photo of a {name}." for name in NAMES])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    learned = tower.features(tower.tokens(NAMES, 4), embeddings(tower, "a photo of a"))
    torch.testing.assert_close(learned, expected, atol=1e-5, rtol=0)


def test_many_prompts_in_parts_give_the_same_features_and_gradients(
    encoder: HubEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = PromptTower(encoder)
    prompts = tower.tokens(NAMES, CONTEXT)
    found = []
    for chunk in (1024, 3):
        monkeypatch.setattr("unseen_bench.methods.prompts.tower.CHUNK", chunk)
        context = tower.random_contexts(4, CONTEXT, generator=torch.Generator().manual_seed(0)).requires_grad_()
        rows = tower.features(prompts, context)
        (gradient,) = torch.autograd.grad(rows.square().cumsum(1).sum(), context)
        found.append((rows.detach(), gradient))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("method", REGISTRY)
def test_only_contexts_change_and_the_loss_falls(method: str, encoder: HubEncoder, space: LabelSpace) -> None:
    before = {name: one.clone() for name, one in encoder.model.state_dict().items()}
    seen: list[float] = []
    chosen = LearnOptions(method, epochs=12, rate=0.05, batch=12, context=CONTEXT, held_out=0.0)
    images = batch(encoder, REGISTRY[method].needs)
    made = learn(space, images, encoder, chosen, report=lambda epoch, _: seen.append(epoch.loss))
    assert all(torch.equal(one, before[name]) for name, one in encoder.model.state_dict().items())
    assert len(seen) == 12
    half = seen[:6] if method == "negprompt" else seen  # its second half has another loss
    assert min(half[2:]) < half[0]
    assert made.names == space.names
    assert not torch.equal(made.id_anchors, space.id_anchors)
    assert made.manifest["learned_by"] == method
    assert made.prompt == f"learned: {method}, 4 tokens"
    own = REGISTRY[method]().negatives(NAMES)
    assert len(made.negatives) == len(own) if own else made.negatives == space.negatives
    assert all(parameter.grad is None for parameter in encoder.model.parameters())


def test_gradients_in_float16_are_scaled(encoder: HubEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def training(of: HubEncoder) -> Training:
        tower = PromptTower(of)
        return Training(options("coop").learner(), tower, tower.tokens(NAMES, CONTEXT), batch(of))

    half = HubEncoder.of_model(copy.deepcopy(encoder.model), encoder.processor, encoder.tokenizer, dtype=torch.float16)
    tiny = CoOp.loss
    monkeypatch.setattr(CoOp, "loss", lambda *arguments: 1e-8 * tiny(*arguments))
    run, plain = training(half), training(half)
    plain.scaler = GradScaler("cpu", enabled=False)
    run.scaler = GradScaler("cpu", init_scale=2.0**20)
    for one in (run, plain):
        one.step(torch.arange(6))
    assert float(run.contexts["shared"].grad.norm()) > 0  # type: ignore[union-attr]
    assert float(plain.contexts["shared"].grad.norm()) == 0  # type: ignore[union-attr]
    assert training(half).scaler.is_enabled()
    assert not training(encoder).scaler.is_enabled()


def impatient(encoder: HubEncoder, method: str) -> Training:
    """Training with a rate so high that examples that are held out soon gain no more."""
    images, tower = batch(encoder), PromptTower(encoder)
    learner = LearnOptions(method, epochs=40, rate=50.0, batch=6, context=CONTEXT).learner()
    return Training(learner, tower, tower.tokens(NAMES, CONTEXT), images, held_out=images, patience=2)


def test_training_stops_when_held_out_examples_no_longer_gain(encoder: HubEncoder) -> None:
    run, images = impatient(encoder, "coop"), batch(encoder)
    epochs = list(run)
    assert len(epochs) < 40
    lowest = min(epoch.held_out for epoch in epochs)
    assert lowest == pytest.approx(run.lowest)
    assert float(name_loss(images.z, run.rows().known, images.label)) == pytest.approx(lowest, rel=1e-4)


def test_the_second_phase_of_negprompt_begins_with_the_best_names_and_moves_negatives(encoder: HubEncoder) -> None:
    run = impatient(encoder, "negprompt")
    start = run.best["negative"]
    first = []
    for epoch in run:
        first.append(epoch)
        if run.epoch == 20:  # an early stop of the first phase leads to the second
            break
    best = {name: one.clone() for name, one in run.best.items()}
    assert len(first) < 20
    assert torch.equal(best["negative"], start)
    assert len(list(run)) == 20
    assert torch.equal(run.best["shared"], best["shared"])
    assert not torch.equal(run.best["negative"], start)


def test_a_learned_label_space_survives_its_file_and_scores_by_the_formula_of_lsn(
    encoder: HubEncoder, space: LabelSpace, tmp_path: Path
) -> None:
    learn(space, batch(encoder), encoder, options("lsn")).save(tmp_path / "prompts.safetensors")
    made = LabelSpace.load(tmp_path / "prompts.safetensors").to(dtype=torch.float64)
    check_detector(LSNScore(made))
    z = unit(3, made.dim)
    expected = (z @ made.id_anchors.T).softmax(1).amax(1)
    for part in made.ood_anchors.split(4):
        expected = expected + ((1 - z @ part.T) / 5).softmax(1).amax(1) / 3
    torch.testing.assert_close(LSNScore(made).score(None, z).score, expected)
    with pytest.raises(LabelError, match="expected the label space of `unseen bench learn --method lsn`, got another"):
        LSNScore(space)


def test_bad_input_is_refused(encoder: HubEncoder) -> None:
    with pytest.raises(EncoderError, match="expected a CLIP model of transformers with a text tower"):
        PromptTower(ColourEncoder())  # type: ignore[arg-type]
    with pytest.raises(LabelError, match="expected prompts of at most 16 tokens, got 17"):
        PromptTower(encoder).tokens(["cat"], 13)
    with pytest.raises(SettingError, match="expected a method out of coop, locoop"):
        LearnOptions("loocop").learner()


def test_the_command_learns_a_label_space_and_detect_reads_it(
    encoder: HubEncoder, space: LabelSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space.save("space.safetensors")
    for picture, index in zip(pictures(12), LABEL, strict=True):
        folder = tmp_path / "known" / NAMES[index]
        folder.mkdir(parents=True, exist_ok=True)
        picture.pixels.save(folder / picture.path)
    (tmp_path / "known" / "cat" / "broken.png").write_bytes(b"x")
    learned = ("bench", "learn", "--examples", "known", "--space", "space.safetensors", "--encoder", encoder.name)
    monkeypatch.setattr("unseen_bench.methods.prompts.LearnOptions", partial(LearnOptions, epochs=2, context=4))
    result = call(*learned, "--json", code=1)
    assert "known/cat/broken.png  skipped" in result.stderr
    assert "epoch 2 of 2 · loss" in result.stderr
    assert rows(result)[0]["learned_by"] == "locoop"
    call("detect", "known", "--space", "prompts.safetensors", "--device", "cpu", "--json", code=1)  # one is skipped
