"""unseen watch: a camera, a stream, a video or a folder that grows, and a line whenever the verdict changes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import options, output
from unseen.errors import SettingError

if TYPE_CHECKING:
    from unseen.cli.run import Step
    from unseen.encoders import Encoder
    from unseen.images import Entry, Image, Skipped


def watch(
    source: Annotated[str, typer.Argument(help="Number of a camera, address of a stream, video file, or folder.")],
    label: options.Label = None,
    labels: options.Labels = None,
    encoder: Annotated[str | None, typer.Option(help="offline, ViT-B/16, a hub id ... (default: offline).")] = None,
    state: options.State = None,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between two frames, or looks at a folder.")] = 1.0,
    save_unknown: Annotated[Path | None, typer.Option(help="Folder for pictures of what is unknown.")] = None,
    command: Annotated[
        str | None, typer.Option(help="Command to run on unknown; it gets the verdict as JSON on stdin.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Judge what a camera sees, or what comes into a folder, until it ends or Ctrl-C.

    Example: `unseen watch 0 --label cat --label dog --save-unknown unknown/ --state state.safetensors`

    A camera, a stream or a video prints a line when the verdict changes, a folder one for each picture.

    `--command "mail -s unknown me@example.org"` runs for each unknown line that is printed, one after the other.
    """
    output.check_folders(state)
    if save_unknown:
        output.check_writable(save_unknown)
    form, is_folder = output.Format.of(as_json=as_json), Path(source).is_dir()
    if not (is_folder or source.isdecimal() or "://" in source or Path(source).is_file()):
        raise SettingError(f"expected a camera, an address, a video file or a folder, got {source}; check the path")

    from unseen.cli import run, session
    from unseen.images import live
    from unseen.storage.files import content_mark

    mark = content_mark(state)
    ready = session.prepare(state, labels, label, encoder)
    with form.lines(name=output.longest(ready.session.detector.labels.names)) as lines:
        watcher = Watcher(lines, save_unknown, command, only_changes=not is_folder)
        stream = run.Run(ready.session, output.Lines(watcher.verdict, lines.skipped), state, mark, live=True)
        if state and is_folder:
            stream.learned = run.LearnedFiles.of_state(state, stream.seen)
        stream.go(watcher.steps(live.watch(source, every=every), ready.model), unit="images", total=None)
    raise stream.finish(None, title=f"unseen watch: {source}", as_json=as_json)


@dataclass
class Watcher:
    """What is done with each verdict: a line where it is news, and a picture and a command where it is unknown."""

    lines: output.Lines
    folder: Path | None
    command: str | None
    only_changes: bool
    told: tuple[str, str | None] | None = None  # verdict and name of the last line
    row: Image | Skipped | None = None  # that is being judged

    def steps(self, entries: Iterable[Entry], model: Encoder) -> Iterator[Step]:
        """Yield one picture after the other, none of them read ahead: a camera goes on meanwhile."""
        from unseen.cli.run import Step
        from unseen.images import Skipped

        for entry in entries:
            self.row = row = entry.read()
            if isinstance(row, Skipped):
                yield Step([(row.path, row.reason)], None)
            else:
                yield Step([(row.path, None)], model.images([row]).cpu(), (row,))

    def verdict(self, record: output.Record) -> None:
        """Print a verdict that is news, and do what is asked for if it is unknown."""
        from unseen.images import Image

        found = record["verdict"], record["name"]
        if self.only_changes and found == self.told:
            return
        self.told = found
        self.lines.verdict(record)
        if record["verdict"] != "unknown":
            return
        picture: Path | None = None
        if self.folder and isinstance(self.row, Image):
            name = Path(self.row.path).name if self.only_changes else self.row.path  # a folder may have others in it
            picture = self.folder / (re.sub(r"[^\w.-]+", "-", name.removesuffix(".jpg")).lstrip("-") + ".jpg")
            self.row.pixels.save(picture, quality=95)
        if self.command:
            text = json.dumps({**record, "picture": picture and str(picture)}) + "\n"
            done = subprocess.run(self.command, shell=True, input=text, text=True, check=False)
            if done.returncode:
                output.warn(f"the command ended with code {done.returncode}")
