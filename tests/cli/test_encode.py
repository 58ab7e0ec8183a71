"""unseen encode, export and models as a user runs them."""

import pytest

from helpers.commands import rows, run
from helpers.pictures import save_shade
from helpers.tiny_models import ColourEncoder, TinyOffline, save_clip
from unseen.encoders import catalogue
from unseen.encoders.offline import encoder as offline
from unseen.errors import EncoderError, SettingError
from unseen.features import load_features


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: ColourEncoder())
    for i in range(5):
        save_shade(tmp_path / "photos" / f"{i}.png", (20 * i, 100, 50), size=(4, 4))
    return tmp_path / "photos"


def test_encode_writes_features_and_a_second_run_finds_them(photos, tmp_path):
    first = run("encode", photos, "-o", tmp_path / "f", "--batch", 2, "--json")
    assert rows(first)[-1]["summary"] == {"encoded": 5, "already": 0, "skipped": 0, "stopped": False}
    second = run("encode", photos, "-o", tmp_path / "f", "--json")
    assert rows(second)[-1]["summary"]["already"] == 5
    assert len(load_features(tmp_path / "f")) == 5


def test_a_cluster_is_joined_from_a_node_of_it(photos, tmp_path):
    with pytest.raises(SettingError, match="start the command on a node"):
        run("encode", photos, "-o", tmp_path / "f", "--ray", "ray://host:10001")
    assert not (tmp_path / "f").exists()


def test_skipped_images_are_named_and_change_the_exit_code(photos, tmp_path):
    (photos / "broken.png").write_bytes(b"no picture")
    machine = run("encode", photos, "-o", tmp_path / "f", "--json", code=1)
    assert rows(machine)[0] == {"key": str(photos / "broken.png"), "skipped": "not an image of a supported format"}
    person = run("encode", photos, "-o", tmp_path / "g", code=1)
    assert person.stdout == ""
    assert "skipped: not an image" in " ".join(person.stderr.split())


def test_ctrl_c_keeps_the_features_encoded_so_far(photos, tmp_path, monkeypatch):
    class Interrupted(ColourEncoder):
        def images(self, batch):
            if self.calls >= 4:
                raise KeyboardInterrupt
            return super().images(batch)

    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: Interrupted())
    result = run("encode", photos, "-o", tmp_path / "f", "--batch", 2, "--json", code=1)
    assert rows(result)[-1]["summary"]["stopped"]
    assert len(load_features(tmp_path / "f")) == 4


def test_a_folder_model_encodes_and_is_exported_as_one_file(photos, tmp_path, monkeypatch):
    monkeypatch.undo()
    model = save_clip(tmp_path / "model")
    run("encode", photos, "-o", tmp_path / "f", "--encoder", model, "--device", "cpu")
    assert load_features(tmp_path / "f").z.shape == (5, 8)
    with pytest.raises(EncoderError, match=r"ends in \.onnx, got .*tower\.pb"):
        run("models", "export", model, "-o", tmp_path / "tower.pb")
    monkeypatch.setattr("unseen.encoders.onnx.export", lambda encoder, path: path.write_bytes(b"onnx") and path)
    assert rows(run("models", "export", model, "-o", tmp_path / "tower.onnx", "--json"))[0]["dim"] == 8


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    monkeypatch.setattr(offline, "is_fetched", lambda: False)


@pytest.mark.usefixtures("cached")
def test_models_list_and_show():
    listed = rows(run("models", "list", "--json"))
    assert [row["name"] for row in listed] == list(catalogue.MODELS)
    assert "package index" in run("models", "show", "offline").stdout
    shown = run("models", "show", "offline")
    assert "unseen models fetch offline" in shown.stderr
    assert "ViT-L/14@336" in run("models", "list").stdout


@pytest.mark.usefixtures("cached")
def test_models_fetch_measures_and_reports_the_result(monkeypatch):
    monkeypatch.setattr(offline, "fetch", lambda report: report(5, 10))
    monkeypatch.setattr(catalogue, "load_encoder", lambda name, **where: TinyOffline(**where))
    monkeypatch.setattr("unseen.encoders.runtimes.installed_runtimes", lambda: ["torch"])
    (row,) = rows(run("models", "fetch", "offline", "--json"))
    assert (row["name"], list(row["rates"])) == ("offline", ["torch"])
    assert "torch" in run("models", "show", "offline").stdout
    with pytest.raises(SettingError, match="expected one of offline"):
        run("models", "fetch", "nothing")
