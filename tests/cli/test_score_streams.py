"""unseen score streams: one session per value of a column."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from itertools import islice

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers import suite_files
from helpers.streams import space, stream
from unseen import LabelSpace, Session, keyed
from unseen.cli import app
from unseen.errors import DataError, MissingExtra, SettingError, StateError

KEYS = ["b", "a", "b", "c/d", "a", "b"] * 20


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def files(tmp_path):
    labels = space(dtype=torch.float32)
    labels.save(tmp_path / "space.safetensors")
    camera = torch.tensor([ord(key[0]) for key in KEYS])
    tensors = {"features": stream(labels, len(KEYS)), "camera": camera}
    save_file(tensors, tmp_path / "z.safetensors", metadata={"site": json.dumps(KEYS)})
    return tmp_path


def words(files, *more):
    return ["score", "streams", files / "z.safetensors", "--space", files / "space.safetensors", "--json", *more]


@pytest.mark.parametrize("column", ["site", "camera"])
def test_the_command_prints_samples_in_order_and_then_the_streams(files, column):
    result = run(*words(files, "--key", column, "--threshold", 0))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    samples, streams = rows[: len(KEYS)], rows[len(KEYS) :]
    assert [row["key"] for row in samples] == [f"z/{row}" for row in range(len(KEYS))]
    keys = KEYS if column == "site" else [str(ord(key[0])) for key in KEYS]
    assert [row["stream"] for row in samples] == keys
    assert [row["summary"]["samples"] for row in streams] == [60, 40, 20]
    known = sum(row["verdict"] == "known" for row in samples if row["stream"] == keys[0])
    assert streams[0]["summary"]["known"] == known
    assert "3 streams" in run(*[word for word in words(files, "--key", column) if word != "--json"]).stderr


def test_each_stream_has_a_state_in_the_folder_and_goes_on_from_it(files):
    arguments = words(files, "--key", "site", "--state", files / "states", "--detector", "online")
    for seen in (60, 120):
        rows = [json.loads(line) for line in run(*arguments).stdout.splitlines()]
        assert rows[-3]["summary"]["seen"] == seen
    labels = LabelSpace.load(files / "space.safetensors")
    session = Session.load(keyed.state_path(files / "states", "c/d"), labels)
    assert int(session.snapshot.tally.seen) == 40
    kept = {path.name: path.read_bytes() for path in (files / "states").iterdir()}
    assert len(kept) == 3
    assert run(*arguments, "--no-learn").exit_code == 0
    assert {path.name: path.read_bytes() for path in (files / "states").iterdir()} == kept
    wrong = run(*words(files, "--key", "site", "--state", files / "states"))
    assert isinstance(wrong.exception, StateError)
    assert "expected a state of detector pooled, got one of online" in str(wrong.exception)


def test_a_run_that_fails_leaves_the_states_as_they_were_and_can_be_run_again(files, monkeypatch):
    arguments = words(files, "--key", "site", "--state", files / "states", "--detector", "online")
    assert run(*arguments).exit_code == 0
    kept = {path.name: path.read_bytes() for path in (files / "states").iterdir()}
    (files / "taken").write_text("no folder")
    assert run(*arguments, "-o", files / "taken").exit_code != 0  # the verdicts cannot be written
    assert {path.name: path.read_bytes() for path in (files / "states").iterdir()} == kept

    def two_of_three(*work):
        yield from islice(run_all(*work), 2)
        raise DataError("the head died")

    run_all = keyed.run_serially
    with monkeypatch.context() as patch:
        patch.setattr(keyed, "run_serially", two_of_three)
        assert "the head died" in str(run(*arguments).exception)
    assert {path.name: path.read_bytes() for path in (files / "states").iterdir()} == kept
    rows = [json.loads(line) for line in run(*arguments).stdout.splitlines()]
    assert [row["summary"]["seen"] for row in rows[-3:]] == [120, 80, 40]  # the second time, not the third


def test_a_missing_column_is_refused_with_those_that_exist(files):
    assert "expected a column out of camera, site, folder" in str(run(*words(files, "--key", "x")).exception)


def test_without_ray_only_the_ray_option_is_refused(files, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(*words(files, "--key", "site")).exit_code == 0
    (files / "photos").mkdir()
    table = suite_files.write(files)
    for command in (
        words(files, "--key", "site", "--ray", "auto"),
        ["encode", files / "photos", "-o", files / "f", "--ray", "auto"],
        ["bench", table, "--features", files, "--ray", "auto"],
    ):
        error = run(*command).exception
        assert isinstance(error, MissingExtra)
        assert "unseen[ray]" in str(error)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_missing_cluster_is_reported_at_once(files, address):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
        error = run(*words(files, "--key", "site", "--ray", address.format(unused.getsockname()[1]))).exception
    assert isinstance(error, SettingError)
    assert "expected a Ray cluster at" in str(error)


def test_no_module_imports_ray_before_it_is_needed():
    code = "import sys, unseen.cli; sys.exit(any(name in sys.modules for name in ('ray', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
