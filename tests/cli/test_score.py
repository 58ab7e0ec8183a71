"""unseen score: verdicts for features, of one stream or of one per value of a column; states, misuse."""

from __future__ import annotations

import csv
import json
import socket
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.commands import rows, run
from helpers.streams import space, stream
from unseen import LabelSpace, Session, keyed
from unseen.cli import main
from unseen.cli.calibration import KnownImages
from unseen.errors import DataError, EncoderError, MissingExtra, SettingError, StateError
from unseen.features import load_features
from unseen.verdicts import FIELDS, VERDICTS

KEYS = ["b", "a", "b", "c/d", "a", "b"] * 20


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a label space, a stream, and one whose samples belong to three streams."""
    monkeypatch.chdir(tmp_path)
    labels = space(dtype=torch.float32)
    labels.save("space.safetensors")
    save_file({"features": stream(labels, 90).half()}, "z.safetensors")
    many = {"features": stream(labels, len(KEYS)), "camera": torch.tensor([ord(key[0]) for key in KEYS])}
    save_file(many, "many.safetensors", metadata={"site": json.dumps(KEYS)})
    return tmp_path


ONE = ("score", "z.safetensors", "--space", "space.safetensors")
MANY = ("score", "many.safetensors", "--space", "space.safetensors")
STATE = ("--state", "state.safetensors")


def session(path: str | Path = "state.safetensors") -> Session:
    return Session.load(path, LabelSpace.load("space.safetensors"))


def seen(*words: str) -> int:
    return rows(run(*words, "--json"))[-1]["summary"]["seen"]


def states() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("states").iterdir()}


def test_score_prints_a_verdict_per_sample_and_a_summary():
    *found, last = rows(run(*ONE, "--json"))
    assert [row["key"] for row in found] == [f"z/{i}" for i in range(90)]
    assert {tuple(row) for row in found} == {FIELDS}
    assert all((row["likely"] is None) == (row["verdict"] == "known") for row in found)
    assert {row["verdict"] for row in found} <= set(VERDICTS)
    assert all((row["name"] is None) == (row["verdict"] == "unknown") for row in found)
    assert last["summary"]["known"] == sum(row["verdict"] == "known" for row in found)
    assert (last["summary"]["seen"], last["state"]) == (90, None)
    lines = run(*ONE).stdout.splitlines()
    assert len([line for line in lines if "known" in line]) == 90


def test_score_goes_on_from_its_state_with_its_detector_and_threshold():
    assert seen(*ONE, *STATE, "--detector", "mcm") == 90
    assert seen(*ONE, *STATE) == 180
    assert int(session().snapshot.tally.seen) == 180
    with pytest.raises(SettingError, match="was learned with, mcm, got pooled"):
        run(*ONE, *STATE, "--detector", "pooled")


def test_no_learn_changes_nothing():
    assert "nothing learned yet" in run(*ONE, "--no-learn").stderr
    run(*ONE, *STATE)
    kept = Path("state.safetensors").read_bytes()
    first, second = (rows(run(*ONE, *STATE, "--no-learn", "--json"))[:-1] for _ in range(2))
    assert first == second
    assert Path("state.safetensors").read_bytes() == kept


def test_features_are_judged_at_their_end_or_live():
    *found, last = rows(run(*ONE, "--json"))
    assert [row["threshold"] for row in found] == pytest.approx([last["summary"]["threshold"]] * 90)
    assert last["summary"]["known"] == sum(row["verdict"] == "known" for row in found)
    *live, _ = rows(run(*ONE, "--live", "--json"))
    assert len({row["threshold"] for row in live}) > 1
    streamed = Session(LabelSpace.load("space.safetensors"))
    assert [row["margin"] for row in live] == pytest.approx(
        streamed.observe(load_features("z.safetensors").z).margin.tolist()
    )


def test_a_stream_of_features_is_told_by_features_of_known_images():
    labels = space()
    z = stream(labels, 200, seed=8)
    rows_known = Session(labels).score(z).margin.topk(40).indices
    save_file({"features": z[rows_known].half()}, "known.safetensors")
    run(*ONE, *STATE)
    run("calibrate", "known.safetensors", *STATE)
    assert len(session().told.z) == 40
    (row,) = rows(run("calibrate", "known.safetensors", *STATE, "--recall", "0.9", "--guarantee", "--json"))
    assert (row["calibration"]["images"], row["calibration"]["recall"]) == (40, 0.9)


def test_features_of_another_width_or_encoder_are_refused():
    run(*ONE, *STATE)
    save_file({"features": stream(space(dim=12), 40).half()}, "narrow.safetensors")
    with pytest.raises(EncoderError, match="expected features of width 16"):
        run("calibrate", "narrow.safetensors", *STATE)
    mined = replace(LabelSpace.load("space.safetensors"), manifest={"encoder_fingerprint": "abc"})
    save_file({"features": stream(space(), 40)}, "other.safetensors", metadata={"fingerprint": "xyz"})
    with pytest.raises(EncoderError, match="expected features of the encoder of this label space"):
        KnownImages.find("other.safetensors").read(mined)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--detector", "nobody"), "expected a detector out of"),
        (("--space", "missing.safetensors"), "got no file at missing.safetensors"),
        (("--ray", "local"), "expected --by COLUMN with --ray"),
        (("--by", "site", "--table", "z"), "expected --by without --table"),
        (("--by", "x"), "expected a column out of folder"),
    ],
)
def test_misuse_ends_in_one_sentence_and_exit_code_2(change, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["unseen", *ONE, *change])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("column", ["site", "camera"])
def test_streams_of_a_column_are_scored_by_themselves_and_printed_in_order(column):
    found = rows(run(*MANY, "--by", column, "--json"))
    samples, streams = found[: len(KEYS)], found[len(KEYS) :]
    assert [row["key"] for row in samples] == [f"many/{row}" for row in range(len(KEYS))]
    keys = KEYS if column == "site" else [str(ord(key[0])) for key in KEYS]
    assert [row["stream"] for row in samples] == keys
    assert [row["summary"]["samples"] for row in streams] == [60, 40, 20]
    for word in ("known", "doubtful"):
        count = sum(row["verdict"] == word for row in samples if row["stream"] == keys[0])
        assert streams[0]["summary"][word] == count
    assert " known " in run(*MANY, "--by", column).stdout
    assert "3 streams" in run(*MANY, "--by", column, "-o", "out.csv").stderr
    with Path("out.csv").open(newline="") as file:
        assert [row["stream"] for row in csv.DictReader(file)] == keys


def test_an_sql_engine_counts_the_verdicts_of_each_stream():
    duckdb = pytest.importorskip("duckdb")
    run(*MANY, "--by", "site", "-o", "verdicts.jsonl")
    found = duckdb.sql("select stream, count(*) from 'verdicts.jsonl' group by all order by 1").fetchall()
    assert found == [("a", 40), ("b", 60), ("c/d", 20)]


def test_each_stream_has_a_state_in_the_folder_and_goes_on_from_it():
    arguments = (*MANY, "--by", "site", "--state", "states", "--detector", "online")
    for count in (60, 120):
        assert rows(run(*arguments, "--json"))[-3]["summary"]["seen"] == count
    assert int(session(keyed.state_path(Path("states"), "c/d")).snapshot.tally.seen) == 40
    kept = states()
    assert len(kept) == 3
    run(*arguments, "--no-learn")
    assert states() == kept
    with pytest.raises(StateError, match="expected a state of detector pooled, got one of online"):
        run(*MANY, "--by", "site", "--state", "states")


def test_a_run_that_fails_leaves_the_states_as_they_were_and_can_be_run_again(monkeypatch):
    arguments = (*MANY, "--by", "site", "--state", "states", "--detector", "online")
    run(*arguments)
    kept = states()
    with pytest.raises(SettingError, match="expected a folder for"):  # the verdicts cannot be written
        run(*arguments, "-o", "taken/out.csv")
    assert states() == kept

    def two_of_three(*work):
        yield from islice(run_all(*work), 2)
        raise DataError("the head died")

    run_all = keyed.run_serially
    with monkeypatch.context() as patch:
        patch.setattr(keyed, "run_serially", two_of_three)
        with pytest.raises(DataError, match="the head died"):
            run(*arguments)
    assert states() == kept
    found = rows(run(*arguments, "--json"))
    assert [row["summary"]["seen"] for row in found[-3:]] == [120, 80, 40]  # the second time, not the third


def test_without_ray_only_the_ray_option_is_refused(files, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    run(*MANY, "--by", "site")
    Path("photos").mkdir()
    for command in (
        (*MANY, "--by", "site"),
        ("encode", "photos", "-o", "f"),
    ):
        with pytest.raises(MissingExtra, match=r"unseen\[ray\]"):
            run(*command, "--ray", "auto")


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_missing_cluster_is_reported_at_once(address):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
        with pytest.raises(SettingError, match="expected a Ray cluster at"):
            run(*MANY, "--by", "site", "--ray", address.format(unused.getsockname()[1]))
