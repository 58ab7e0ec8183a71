"""Sessions inside other tools, with the real packages where they install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.pictures import flat
from helpers.streams import stream
from unseen import LabelSpace, Session, detectors, threshold
from unseen.alarm import UnknownRateAlarm
from unseen.errors import MissingExtra
from unseen.images import read_images
from unseen.integrations.datasets import COLUMNS, judge_rows
from unseen.integrations.fiftyone import apply
from unseen.integrations.mlflow import AlarmLogger

pytestmark = pytest.mark.slow  # the packages take seconds to import; run by make docs-commands


def judged(labels: LabelSpace, limit: float = 0.0) -> Session:
    return Session(detectors.make("mcm", labels), threshold.Fixed(limit))


def test_a_data_set_gets_columns_of_verdicts(labels: LabelSpace, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    z = stream(labels, 30).float()
    rows = datasets.Dataset.from_dict({"z": z.tolist()})
    session = judged(labels)
    found = rows.map(judge_rows(session, column="z"), batched=True, batch_size=8)
    assert set(COLUMNS) < set(found.column_names)
    assert found["nearest"][:] == [one.nearest for one in judged(labels).observe(z)]
    assert int(session.snapshot.tally.seen) == 30
    rows.map(judge_rows(session, column="z", learn=False), batched=True)
    assert int(session.snapshot.tally.seen) == 30


def test_the_images_of_a_saved_data_set_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    shades = [10, 120, 250]
    columns = {"image": [flat((shade, 5, 5), (16, 16)) for shade in shades], "label": [0, 1, 1]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "saved")
    (batch,) = read_images(tmp_path / "saved")
    assert [image.pixels.getpixel((0, 0))[0] for image in batch.images] == shades
    assert [image.label for image in batch.images] == ["0", "1", "1"]


def test_without_fiftyone_its_extra_is_named(labels: LabelSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fiftyone", None)  # `make fiftyone` has the package itself
    with pytest.raises(MissingExtra, match="fiftyone"):
        apply([], judged(labels))


def test_an_alarm_is_a_metric_of_mlflow(labels: LabelSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("stream")
    logger = AlarmLogger(UnknownRateAlarm(0.2, between=100))
    with mlflow.start_run() as run:
        assert not logger.log(judged(labels, -1e9).observe(stream(labels, 40)))
        assert logger.log(judged(labels, 1e9).observe(stream(labels, 40)))
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert metrics["alarm"] == metrics["unknown_rate"] == metrics["alarm_evidence"] == 1
