"""Sessions inside other tools, with the real packages where they install."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from helpers.pictures import flat
from helpers.streams import stream
from helpers.tiny_models import NamedColours
from unseen import LabelSpace, Session, detectors, threshold
from unseen.alarm import UnknownRateAlarm
from unseen.errors import MissingExtra
from unseen.images import read_images
from unseen.integrations.datasets import COLUMNS, judge_rows
from unseen.integrations.fiftyone import apply, apply_groups, from_fiftyone
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


class Sample(dict):
    """What FiftyOne calls a sample: fields by name, a path, and `save`. `make fiftyone` has the package itself."""

    def __init__(self, path: Path) -> None:
        self.filepath, self.saved = str(path), 0

    def save(self) -> None:
        self.saved += 1


def test_samples_of_fiftyone_get_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder: Any = NamedColours()
    samples = []
    for i in range(10):
        flat((250, 40 * i, 5) if i < 5 else (5, 40 * (i - 5), 250), (16, 16)).save(tmp_path / f"{i}.png")
        samples.append(Sample(tmp_path / f"{i}.png"))
    samples.insert(2, Sample(tmp_path / "absent.png"))
    space = LabelSpace(("red",), ("blue",), encoder.texts(["red"]), encoder.texts(["blue"]))
    session = Session(space, threshold.Fixed(1e9), encoder=encoder)  # all are unknown
    with pytest.raises(MissingExtra, match="fiftyone"):
        apply(samples, session)
    package: Any = ModuleType("fiftyone")
    package.Classification = SimpleNamespace
    monkeypatch.setitem(__import__("sys").modules, "fiftyone", package)
    apply(samples, session)
    assert list(from_fiftyone(samples)) == [one.filepath for one in samples]
    absent = samples.pop(2)
    assert absent.saved == 1
    assert "unseen" not in absent
    assert "no such file" in absent["unseen_skipped"].lower()
    assert {one["unseen"].label for one in samples} == {"unknown"}
    assert all(one.saved == 1 and isinstance(one["unseen_margin"], float) for one in samples)
    found = apply_groups([*samples, absent], session).groups
    assert len(found) == 2
    for one in found:
        of_group = [sample for sample in samples if sample["unseen_group"] == one.number]
        assert {sample.filepath for sample in of_group} == set(one.keys)
        assert {sample["unseen_group_name"] for sample in of_group} == {one.suggestions[0].word}
    assert absent["unseen_group"] is absent["unseen_group_name"] is None


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
