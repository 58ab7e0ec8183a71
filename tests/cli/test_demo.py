"""The pack in the package and the command that shows it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from PIL import Image as Pillow
from typer.testing import CliRunner

from unseen import demo
from unseen.cli import app
from unseen_bench.demo import trial


def run(tmp_path: Path, *options: str) -> tuple[str, str]:
    report = tmp_path / "demo.html"
    result = CliRunner().invoke(app, ["demo", "--report", str(report), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, report.read_text()


def test_the_pack_is_whole_and_small() -> None:
    pack = demo.load()
    assert demo.PACK.stat().st_size < 10_000_000
    assert len(pack.keys) == len(pack.z) == len(pack.thumbnails) == 1540
    assert torch.linalg.vector_norm(pack.z, dim=1).allclose(torch.ones(1540), atol=1e-5)
    assert trial().sources == ("animals", "vehicles", "digits", "clothes")
    assert (trial().is_id == (trial().source == 0)).all()
    assert set(pack.space.names) == {"bird", "cat", "deer", "dog", "frog", "horse"}
    assert pack.space.encoder == "offline-b16"
    assert {"images", "features", "texts"} <= pack.about.keys()
    for data in pack.thumbnails[::200]:
        assert Pillow.open(io.BytesIO(data)).size in {(32, 32), (28, 28)}


def test_the_demo_prints_verdicts_and_metrics(tmp_path: Path) -> None:
    out, html = run(tmp_path)
    assert "1,540 real images" in out
    assert "6 names + 503 relatives + 1,500 everyday words" in out
    assert "against the truth, which the detector never saw" in out
    assert "AUROC, vehicles" in out
    assert html.count("<svg") == 3
    assert "data:image/jpeg;base64," in html
    assert "Against the truth" in html


def test_json_is_one_object(tmp_path: Path) -> None:
    row = json.loads(run(tmp_path, "--json")[0])
    assert row["samples"] == 1540
    assert row["learning"]["auroc"] > row["frozen"]["auroc"]


def test_photos_are_typical_ones_of_every_kind_in_mixed_order(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--photos", str(tmp_path / "photos"), "--json"], catch_exceptions=False)
    names = sorted(path.stem for path in (tmp_path / "photos").iterdir())
    assert json.loads(result.stdout) == {"photos": len(names), "folder": str(tmp_path / "photos")}
    kinds = [name.partition("-")[2] for name in names]
    assert [kinds.count(kind) for kind in ("deer", "ship", "digit-7", "bag")] == [8, 4, 2, 2]
    assert [int(name[:3]) for name in names] == list(range(104))
    assert kinds != sorted(kinds)
    assert (tmp_path / "photos" / "023-deer.jpg").exists()  # the quickstart promotes it
