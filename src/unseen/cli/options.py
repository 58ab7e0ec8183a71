"""Options that several commands share: one name, one meaning, one sentence of help.

An option that one command has stands in the signature of that command.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from unseen.scale import cluster

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print a table for spreadsheets.")]

# names and encoders
Labels = Annotated[Path | None, typer.Option(help="File of known names: one per line, CSV, JSON or YAML.")]
Label = Annotated[list[str] | None, typer.Option(help="A known name; may be given many times.")]
Space = Annotated[Path, typer.Option(help="Label space file, as `unseen mine` writes it.")]
Encoder = Annotated[str, typer.Option(help="offline, ViT-B/16, a hub id, a model folder or an .onnx file.")]
Vocabulary = Annotated[
    int | None,
    typer.Option(
        min=0, help="Words of WordNet to mine negatives from; 0 reads all 138,495 (default: twice the negatives)."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ... (default: a GPU if there is one).")]

Precision = Annotated[
    str | None,
    typer.Option(help="Of products: float32 or bfloat16. Default: by the device."),
]

Runtime = Annotated[
    str | None, typer.Option(help="Of the image tower on a CPU: openvino, onnxruntime or torch. Default: the fastest.")
]

# images and features
Batch = Annotated[int, typer.Option(min=1, help="Images per step.")]
Root = Annotated[Path | None, typer.Option(help="Where relative paths of an image list start.")]
Stride = Annotated[int, typer.Option(min=1, help="Take every n-th frame of a video.")]
Features = Annotated[
    str, typer.Argument(help="A folder from `unseen encode`, a .safetensors file with `features` [n, d], or .parquet.")
]

# what judges
if TYPE_CHECKING:
    Detector = Annotated[str | None, typer.Option()]  # __getattr__ has it
State = Annotated[Path | None, typer.Option(help="Keep what is learned in this file; go on from it if it is there.")]
Recall = Annotated[
    float | None, typer.Option(help="Share of known images that the threshold should accept (default: 0.95).")
]
Threshold = Annotated[
    float | None, typer.Option(help="Fixed threshold: the margin from which an image is called known.")
]
Calibrate = Annotated[
    str | None,
    typer.Option(help="Photos of your names (folder, folder per class, features): the threshold gets a guarantee."),
]
Examples = Annotated[
    str | None,
    typer.Option(help="A few photos of each class: a folder per class, or labelled features of `unseen encode`."),
]
Rejudge = Annotated[
    bool, typer.Option("--rejudge", help="Print at the end, with the final threshold applied to all images.")
]
Again = Annotated[bool, typer.Option("--again", help="Learn also from files that the state has learned, with --state.")]
Alarm = Annotated[
    float | None,
    typer.Option(help="Warn when more than this share is unknown, or the mix of names changes; docs/how-to/alarms.md."),
]
Learn = Annotated[bool, typer.Option(help="--no-learn scores with the state as it is and changes nothing.")]

# clusters and services
SERVICE_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "unseen"
ServiceData = Annotated[Path, typer.Option(help="Folder of the service: streams, journals and keys.")]
Ray = Annotated[str | None, typer.Option(help=cluster.HELP)]


def __getattr__(name: str) -> Any:
    """The option `Detector`, whose help lists the detectors: importing them takes a second, and torch."""
    if name != "Detector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unseen import detectors

    listed = ", ".join(sorted(detectors.names()))
    words = f"One of: {listed}; or a class of your own, module:Class (default: {detectors.DEFAULT})."
    return Annotated[str | None, typer.Option(help=words)]


class DefaultGroup(TyperGroup):
    """A group whose first command takes all words where the first of them names no other: `unseen bench SUITE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The subcommand that the first word names and the other words, or the first command and all words."""
        first, *others = self.commands
        return (args[0], self.commands[args[0]], args[1:]) if args[0] in others else ("", self.commands[first], args)


def default_group() -> typer.Typer:
    """A group that leaves every word, `--help` too, to its commands."""
    settings = {"ignore_unknown_options": True}
    return typer.Typer(cls=DefaultGroup, context_settings=settings, add_help_option=False, no_args_is_help=True)
