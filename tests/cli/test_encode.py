"""unseen encode, export and models as a user runs them."""

import json

import pytest
import typer
from PIL import Image as Pillow
from typer.testing import CliRunner

from helpers.tiny_models import ColourEncoder, TinyOffline, save_clip
from unseen.cli import encode as encode_command
from unseen.cli import export as export_command
from unseen.cli import models as models_command
from unseen.encoders import catalogue
from unseen.encoders.offline import encoder as offline
from unseen.errors import DataError, EncoderError, SettingError
from unseen.features import load_features

app = typer.Typer()
app.command()(encode_command.encode)
app.command()(export_command.export)
app.add_typer(models_command.models, name="models")


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def rows(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setattr(encode_command, "load_encoder", lambda name, **options: ColourEncoder())
    (tmp_path / "photos").mkdir()
    for i in range(5):
        Pillow.new("RGB", (4, 4), (20 * i, 100, 50)).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def test_encode_writes_features_and_a_second_run_finds_them(photos, tmp_path):
    first = run("encode", photos, "-o", tmp_path / "f", "--batch", 2, "--json")
    assert first.exit_code == 0
    assert rows(first)[-1]["summary"] == {"encoded": 5, "already": 0, "skipped": 0, "stopped": False}
    second = run("encode", photos, "-o", tmp_path / "f", "--json")
    assert rows(second)[-1]["summary"]["already"] == 5
    assert len(load_features(tmp_path / "f")) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--decode", "gpu"], "expected an encoder on a GPU"),
        (["--decode", "pil"], "expected a way of decoding out of pillow, gpu"),
        (["--decode", "gpu", "--ray", "local"], "expected no --decode and no --runtime with --ray"),
    ],
)
def test_decoding_on_a_gpu_has_conditions(photos, tmp_path, words, message):
    failed = run("encode", photos, "-o", tmp_path / "f", *words)
    assert isinstance(failed.exception, EncoderError | SettingError)
    assert message in str(failed.exception)
    assert not (tmp_path / "f").exists()


def test_skipped_images_are_named_and_change_the_exit_code(photos, tmp_path):
    (photos / "broken.png").write_bytes(b"no picture")
    machine = run("encode", photos, "-o", tmp_path / "f", "--json")
    assert machine.exit_code == 1
    assert rows(machine)[0] == {"key": str(photos / "broken.png"), "skipped": "not an image of a supported format"}
    person = run("encode", photos, "-o", tmp_path / "g")
    assert person.stdout == ""
    assert "skipped: not an image" in " ".join(person.stderr.split())


def test_ctrl_c_keeps_the_features_encoded_so_far(photos, tmp_path, monkeypatch):
    class Interrupted(ColourEncoder):
        def images(self, batch):
            if self.calls >= 4:
                raise KeyboardInterrupt
            return super().images(batch)

    monkeypatch.setattr(encode_command, "load_encoder", lambda name, **options: Interrupted())
    result = run("encode", photos, "-o", tmp_path / "f", "--batch", 2, "--json")
    assert result.exit_code == 1
    assert rows(result)[-1]["summary"]["stopped"]
    assert len(load_features(tmp_path / "f")) == 4


def test_a_client_of_a_cluster_cannot_encode(photos, tmp_path):
    error = run("encode", photos, "-o", tmp_path / "f", "--ray", "ray://host:10001").exception
    assert isinstance(error, SettingError)
    assert "start the command on a node" in str(error)


def test_an_empty_folder_is_an_error(tmp_path):
    assert isinstance(run("encode", tmp_path, "-o", tmp_path / "f").exception, DataError)
    assert not (tmp_path / "f").exists()


def test_encode_with_a_folder_model_and_export_it(photos, tmp_path, monkeypatch):
    monkeypatch.undo()
    model = save_clip(tmp_path / "model")
    assert run("encode", photos, "-o", tmp_path / "f", "--encoder", model, "--device", "cpu").exit_code == 0
    assert load_features(tmp_path / "f").z.shape == (5, 8)
    assert isinstance(run("export", model, "-o", tmp_path / "tower.pb").exception, EncoderError)


def test_export_writes_one_file(tmp_path, monkeypatch):
    model = save_clip(tmp_path / "model")
    monkeypatch.setattr(export_command, "write_onnx", lambda encoder, path: path.write_bytes(b"onnx") and path)
    result = run("export", model, "-o", tmp_path / "tower.onnx", "--json")
    assert rows(result)[0]["dim"] == 8


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
    encoder = TinyOffline(device="cpu", runtime="torch")
    monkeypatch.setattr(catalogue, "load_encoder", lambda name, device: encoder)
    monkeypatch.setattr("unseen.encoders.runtimes.installed_runtimes", lambda: ["torch"])
    (row,) = rows(run("models", "fetch", "offline", "--json"))
    assert (row["name"], list(row["rates"])) == ("offline", ["torch"])
    assert "torch" in run("models", "show", "offline").stdout
    assert isinstance(run("models", "fetch", "nothing").exception, SettingError)


@pytest.mark.parametrize(
    "command", [["encode"], ["export"], ["models", "fetch"], ["models", "show"], ["models", "list"]]
)
def test_help_has_an_example(command):
    assert "Example: " in run(*command, "--help").stdout


def test_without_the_hub_library_nothing_is_cached(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not catalogue.find_model("ViT-B/16").is_ready
