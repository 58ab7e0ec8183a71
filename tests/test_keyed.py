"""Streams by key: each as if it were alone, verdicts in the order of the input."""

from __future__ import annotations

import json
import pickle
import socket
import sys

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers import suite_files
from helpers.streams import space, stream
from unseen import LabelSpace, Session, SessionSpec, detectors, keyed
from unseen.cli import app
from unseen.errors import DataError, MissingExtra, SettingError, StateError
from unseen.threads import one_thread
from unseen.threshold import Fixed

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
    return ["score", files / "z.safetensors", "--space", files / "space.safetensors", "--json", *more]


def test_each_stream_is_scored_as_if_it_were_alone(labels):
    z = stream(labels, len(KEYS))
    recipe = keyed.StreamJob(SessionSpec(labels, "online", threshold="fixed"))
    parts = keyed.split(KEYS)
    assert [part.key for part in parts] == ["b", "a", "c/d"]
    verdicts = keyed.joined(parts, reversed(list(keyed.run_serially(recipe, parts, z, {}))))
    for key in "b", "a", "c/d":
        rows = torch.tensor([row for row, other in enumerate(KEYS) if other == key])
        with one_thread():
            alone = Session(detectors.make("online", labels), Fixed(0.0)).observe(z[rows])
        assert torch.equal(verdicts.reading.score[rows], alone.reading.score)
        assert [verdicts[int(row)] for row in rows] == list(alone)


def test_a_stream_that_is_missing_is_an_error(labels):
    recipe, parts = keyed.StreamJob(SessionSpec(labels, "mcm")), keyed.split(KEYS)
    scans = list(keyed.run_serially(recipe, parts, stream(labels, len(KEYS)), {}))
    with pytest.raises(DataError, match=r"got none for \['c/d'\]"):
        keyed.joined(parts, scans[:2])


def test_the_number_of_torch_threads_does_not_matter(labels):
    z, recipe, parts = stream(labels, 600), keyed.StreamJob(SessionSpec(labels, "default")), keyed.split(["x"] * 600)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            (scan,) = keyed.run_serially(recipe, parts, z, {})
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        found.append(scan.verdicts.reading)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("column", ["site", "camera"])
def test_the_command_prints_samples_in_order_and_then_the_streams(files, column):
    result = run(*words(files, "--key", column, "--cut", 0))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    samples, streams = rows[: len(KEYS)], rows[len(KEYS) :]
    assert [row["key"] for row in samples] == [f"z/{row}" for row in range(len(KEYS))]
    spelled = KEYS if column == "site" else [str(ord(key[0])) for key in KEYS]
    assert [row["stream"] for row in samples] == spelled
    assert [row["summary"]["samples"] for row in streams] == [60, 40, 20]
    known = sum(row["known"] for row in samples if row["stream"] == spelled[0])
    assert streams[0]["summary"]["known"] == known
    assert "3 streams" in run(*[word for word in words(files, "--key", column) if word != "--json"]).stderr


def test_states_lie_in_a_folder_and_go_on(files):
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


def test_a_column_that_is_not_there_is_named(files):
    assert "expected a column out of camera, site, folder" in str(run(*words(files, "--key", "x")).exception)
    assert "expected --key or --shards with --ray" in str(run(*words(files, "--ray", "local")).exception)


def test_without_ray_other_commands_work_and_this_one_says_what_to_install(files, monkeypatch):
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
        assert "pip install 'unseen[ray]'" in str(error)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_is_not_there_is_said_at_once(files, address):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
        error = run(*words(files, "--key", "site", "--ray", address.format(unused.getsockname()[1]))).exception
    assert isinstance(error, SettingError)
    assert "expected a Ray cluster at" in str(error)


def test_an_error_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(MissingExtra("ray", "ray")))
    assert str(error) == str(MissingExtra("ray", "ray"))


def test_no_module_brings_ray_with_it():
    import subprocess

    code = "import sys, unseen.cli; sys.exit(any(name in sys.modules for name in ('ray', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
