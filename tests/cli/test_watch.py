"""unseen watch: a line when the verdict changes, pictures of what is unknown, a command."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image as Pillow

from helpers.commands import rows, run
from helpers.pictures import save_shade, save_video
from helpers.tiny_models import COLOURS
from unseen import Session
from unseen.errors import DataError, SettingError

pytest.importorskip("av")
pytestmark = pytest.mark.usefixtures("encoder")
NAMES = ("--label", "red", "--label", "green", "--json")


@pytest.fixture
def video(tmp_path):
    """Six seconds: two of each colour, blue in the middle."""
    frames = [COLOURS[name] for name in ("red", "blue", "green") for _ in range(20)]
    save_video(tmp_path / "clip.mp4", frames, rate=10, side=64)
    return tmp_path / "clip.mp4"


def verdicts(result) -> list[dict]:
    return [row for row in rows(result) if "verdict" in row]


def test_a_video_prints_a_line_when_the_verdict_changes_and_judges_a_frame_in_so_many_seconds(video, tmp_path):
    code = "import sys; open('seen.jsonl', 'a').write(sys.stdin.read())"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    result = run("watch", "clip.mp4", *NAMES, "--every", 0.5, "--save-unknown", "odd", "--command", command)
    found = verdicts(result)
    changes = [(row["verdict"], row["name"]) for row in found]
    assert all(one != other for one, other in pairwise(changes))
    assert {"red", "green"} <= {row["nearest"] for row in found}
    (summary,) = (row["summary"] for row in rows(result) if "summary" in row)
    assert summary["seen"] == 12
    unknown = [row for row in found if row["verdict"] == "unknown"]
    told = [json.loads(line) for line in Path("seen.jsonl").read_text().splitlines()]
    assert [row["key"] for row in told] == [row["key"] for row in unknown] != []
    for row in told:
        with Pillow.open(row["picture"]) as picture:
            assert picture.size == (64, 64)
    assert len(list((tmp_path / "odd").iterdir())) == len(unknown)


def test_a_folder_that_grows_prints_a_line_for_each_picture_once_it_is_whole(photos, encoder):
    (photos / "half.png").write_bytes((photos / "00-red.png").read_bytes()[:60])
    images, seen = encoder.images, []

    def growing(batch):
        seen.append(Path(batch[0].path).name)
        if len(seen) == 12:
            save_shade(photos / "late.png", COLOURS["blue"], 0)
        if len(seen) == 14:
            raise KeyboardInterrupt
        return images(batch)

    def rest():
        save_shade(photos / "last.png", COLOURS["red"], 9)

    encoder.images = growing
    timer = threading.Timer(0.5, rest)
    timer.start()
    result = run("watch", "photos", *NAMES, "--every", 0.05, "--state", "s.safetensors", code=1)
    timer.join()
    judged = [Path(row["key"]).name for row in verdicts(result)]
    assert len(judged) == len(set(judged)) == 13
    assert [Path(row["key"]).name for row in rows(result) if "skipped" in row] == ["half.png"]
    assert int(Session.load("s.safetensors").snapshot.tally.seen) == 13


def test_of_a_stream_the_newest_frame_counts_and_its_end_ends_the_command(video, tmp_path):
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with server:
        result = run("watch", f"http://127.0.0.1:{server.server_port}/clip.mp4", *NAMES, "--every", 5)
        server.shutdown()
    thread.join()
    (row,) = verdicts(result)
    assert row["nearest"] == "green"


@pytest.mark.parametrize("source", ["9", "nothing.mp4", "http://127.0.0.1:1/x"])
def test_what_cannot_be_watched_is_refused(source):
    with pytest.raises((DataError, SettingError), match=r"expected .*folder"):
        run("watch", source, *NAMES)


def test_a_command_that_fails_is_a_warning(video):
    result = run("watch", "clip.mp4", *NAMES, "--command", "exit 3")
    assert "the command ended with code 3" in result.stderr
