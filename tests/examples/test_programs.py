"""The programs in examples/ run as they are, with a small random CLIP in place of a real one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.pictures import RED, flat, save_video
from helpers.scenes import save_coco, save_scene
from helpers.service import serving
from helpers.tiny_models import save_clip

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip"), context=40)


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_program_is_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 7
    assert max(lengths.values()) < 60, lengths


def test_photos_are_judged_and_the_second_run_goes_on(tmp_path: Path, clip: Path, capsys: Any) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        flat((80 * i, 20, 90), (40, 40)).save(tmp_path / "in" / f"{i}.png")
    (tmp_path / "in" / "3.png").write_bytes(b"broken")
    for total in (3, 6):
        program("photos").main("in", "cat", "dog", encoder=clip, everyday=200)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 5
        assert re.fullmatch(r"in/0\.png: (cat|dog|unknown) \((known|doubtful|unknown), known with \d+%\)", lines[0])
        assert "3.png: skipped" in lines[3]
        assert f"seen={total}" in lines[4]


def test_an_encoder_of_ones_own_knows_its_colours(capsys: Any) -> None:
    program("own_encoder").main()
    assert capsys.readouterr().out.splitlines() == ["red", "green", "unknown, nearest: red"]


def test_a_detector_of_ones_own_passes_the_checks(capsys: Any) -> None:
    program("own_detector").main()
    known, _, unknown = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert min(known, unknown) > 20


def test_batches_of_a_loader_are_judged(clip: Path, capsys: Any) -> None:
    program("dataloader").main(clip, 200)
    counts = [int(count) for count in re.findall(r"\d+", capsys.readouterr().out)]
    assert len(counts) == 12
    assert sum(counts) == 64


def test_frames_of_a_video_become_stretches(tmp_path: Path, clip: Path, capsys: Any) -> None:
    pytest.importorskip("av")
    save_video(tmp_path / "clip.mp4", [RED] * 5)
    program("video").main("clip.mp4", "cat", "dog", encoder=clip, everyday=200, stride=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("frames 0 to ")
    assert re.match(r"frames \d to 4: (cat|dog|unknown)", lines[-1])


def test_a_service_is_asked(tmp_path: Path, capsys: Any) -> None:
    with serving(tmp_path / "data", None) as url:
        program("http_client").main(url)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines[:3]] == [["of", "32", "known"]] * 3
    assert "'nearest'" in lines[3]
    assert lines[4].endswith("samples in the state")


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_streams_on_ray_are_judged_as_in_turn(capsys: Any) -> None:
    program("ray_cluster").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"camera {i}" for i in range(6)]
    assert all(re.fullmatch(r"camera \d: \d+ of 100 known", line) for line in lines)


@pytest.mark.filterwarnings("ignore:OpenCV:UserWarning")
def test_boxes_of_supervision_are_judged(tmp_path: Path, clip: Path, capsys: Any) -> None:
    pytest.importorskip("supervision")
    photos = ["a.png", "b.png"]
    for photo in photos:
        save_scene(tmp_path / "photos" / photo)
    boxes = save_coco(tmp_path / "boxes.json", photos)
    program("boxes").main(str(tmp_path / "photos"), str(boxes), "cat", "dog", encoder=clip, everyday=200)
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [re.sub(r"\d of 3", "n of 3", Path(line).name) for line in lines] == [
        f"{photo} n of 3 boxes known" for photo in photos
    ]
