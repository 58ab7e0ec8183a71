"""unseen score: verdicts for features, states, misuse."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers.streams import space, stream
from unseen import LabelSpace, Session
from unseen.cli import app, main
from unseen.cli.calibrate import read_known
from unseen.errors import EncoderError
from unseen.verdicts import FIELDS

runner = CliRunner()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Write a label space and a stream; return their paths and that of a state to be."""
    labels = space()
    labels.save(tmp_path / "space.safetensors")
    save_file({"features": stream(labels, 90).half()}, tmp_path / "features.safetensors")
    return {name: str(tmp_path / f"{name}.safetensors") for name in ("space", "features", "state")}


def invoke(*arguments: str) -> list[dict]:
    result = runner.invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_score_prints_a_verdict_per_sample_and_a_summary(files):
    *rows, last = invoke("score", files["features"], "--space", files["space"], "--threshold", "0")
    assert [row["key"] for row in rows] == [f"features/{i}" for i in range(90)]
    assert {tuple(row) for row in rows} == {FIELDS}
    assert {row["verdict"] for row in rows} == {"known", "unknown"}
    assert all((row["name"] is None) == (row["verdict"] == "unknown") for row in rows)
    assert last["summary"]["known"] == sum(row["verdict"] == "known" for row in rows)
    assert last["summary"]["seen"] == 90
    assert last["state"] is None


def test_score_goes_on_from_its_state(files):
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    first = invoke(*arguments)[-1]["summary"]
    second = invoke(*arguments)[-1]["summary"]
    assert (first["seen"], second["seen"]) == (90, 180)
    session = Session.load(files["state"], LabelSpace.load(files["space"]))
    assert int(session.snapshot.tally.seen) == 180


def test_no_learn_changes_nothing(files):
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    invoke(*arguments)
    kept = Path(files["state"]).read_bytes()
    first, second = invoke(*arguments, "--no-learn"), invoke(*arguments, "--no-learn")
    assert first[:-1] == second[:-1]
    assert Path(files["state"]).read_bytes() == kept


def test_an_interrupted_run_keeps_what_it_learned(files, monkeypatch):
    monkeypatch.setattr("unseen.cli.score.BATCH", 30)
    observe, calls = Session.observe, []

    def interrupted(self, z, keys):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return observe(self, z, keys)

    monkeypatch.setattr(Session, "observe", interrupted)
    result = runner.invoke(app, ["score", files["features"], "--space", files["space"], "--state", files["state"]])
    assert result.exit_code != 0
    session = Session.load(files["state"], LabelSpace.load(files["space"]))
    assert int(session.snapshot.tally.seen) == 60


def test_the_plain_output_is_one_line_per_sample(files):
    result = runner.invoke(app, ["score", files["features"], "--space", files["space"]])
    assert result.exit_code == 0
    assert len([line for line in result.stdout.splitlines() if "known" in line]) >= 90


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--detector", "nobody"), "expected a detector out of"),
        (("--space", "missing.safetensors"), "got no file at missing.safetensors"),
        (("--recall", "2"), "expected a recall between 0 and 1"),
    ],
)
def test_misuse_ends_in_one_sentence_and_exit_code_2(files, change, message, monkeypatch, capsys):
    arguments = ["unseen", "score", files["features"], "--space", files["space"], *change]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_state_of_another_detector_is_refused(files):
    arguments = ["score", files["features"], "--space", files["space"], "--state", files["state"]]
    runner.invoke(app, arguments)
    result = runner.invoke(app, [*arguments, "--detector", "mcm"])
    assert "was learned with, pooled, got mcm" in str(result.exception)


def test_score_goes_on_with_the_detector_and_the_threshold_of_its_state(files):
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    invoke(*arguments, "--detector", "mcm", "--recall", "0.9")
    invoke(*arguments)
    assert invoke(*arguments, "--recall", "0.9")[-1]["summary"]["seen"] == 270
    result = runner.invoke(app, [*arguments, "--recall", "0.5"])
    assert "expected --recall and --threshold as" in str(result.exception)


def test_a_stream_of_features_is_calibrated_and_rejudged(files, tmp_path):
    save_file({"features": stream(space(), 40, seed=8).half()}, tmp_path / "known.safetensors")
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    *rows, last = invoke(*arguments, "--calibrate", str(tmp_path / "known.safetensors"), "--rejudge")
    assert {row["threshold"] for row in rows} == {last["summary"]["threshold"]}
    assert last["summary"]["known"] == sum(row["verdict"] == "known" for row in rows)
    session = Session.load(files["state"], LabelSpace.load(files["space"]))
    assert int(session.snapshot.threshold.at) == 90
    known = ("calibrate", str(tmp_path / "known.safetensors"), "--state", files["state"], "--space", files["space"])
    (row,) = invoke(*known, "--recall", "0.9")
    assert (row["calibration"]["images"], row["calibration"]["recall"]) == (40, 0.9)


def test_features_of_another_width_or_encoder_are_refused(files, tmp_path):
    invoke("score", files["features"], "--space", files["space"], "--state", files["state"])
    save_file({"features": stream(space(dim=12), 40).half()}, tmp_path / "known.safetensors")
    arguments = ["calibrate", str(tmp_path / "known.safetensors"), "--state", files["state"], "--space", files["space"]]
    assert "expected features of width 16" in str(runner.invoke(app, arguments).exception)
    labels = LabelSpace.load(files["space"])
    mined = replace(labels, manifest={"encoder_fingerprint": "abc"})
    save_file({"features": stream(space(), 40)}, tmp_path / "other.safetensors", metadata={"fingerprint": "xyz"})
    with pytest.raises(EncoderError, match="expected features of the encoder of this label space"):
        read_known(str(tmp_path / "other.safetensors"), mined, 0.95)
    options = ["score", files["features"], "--space", files["space"], "--calibrate", str(tmp_path)]
    assert "expected features of known images" in str(runner.invoke(app, options).exception)


def test_the_summary_asks_for_calibration_where_the_adaptive_threshold_promises_nothing(files):
    arguments = ["score", files["features"], "--space", files["space"]]
    assert (
        "a guess with mcm: calibrate it (--calibrate)" in runner.invoke(app, [*arguments, "--detector", "mcm"]).stderr
    )
    assert "a guess" not in runner.invoke(app, arguments).stderr


def test_the_summary_has_a_line_each_for_counts_threshold_and_files(files):
    arguments = ["score", files["features"], "--space", files["space"], "--state", files["state"]]
    counts, threshold, saved = runner.invoke(app, arguments).stderr.splitlines()[-3:]
    assert counts.startswith("known ")
    assert counts.endswith(" images per second")
    assert threshold.startswith("threshold ")
    assert saved == f"state saved to {files['state']}"


def test_csv_and_report_hold_what_json_holds(files, tmp_path):
    arguments = ("score", files["features"], "--space", files["space"])
    *expected, _ = invoke(*arguments)
    result = runner.invoke(app, [*arguments, "--csv", "--report", str(tmp_path / "r.html")], catch_exceptions=False)
    table = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["key"], row["verdict"]) for row in table] == [(row["key"], row["verdict"]) for row in expected]
    known = sum(row["verdict"] == "known" for row in expected)
    assert f"<b>{known}</b><span>known</span>" in (tmp_path / "r.html").read_text()
