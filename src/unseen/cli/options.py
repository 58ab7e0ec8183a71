"""Options that several commands share: one name, one meaning, one sentence of help. Nothing heavy is imported.

An option that one command has stands in the signature of that command. A default of None is the library's own.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.scale import cluster

MORE: dict[str, Any] = {"rich_help_panel": "More"}  # options that few people need

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Verdicts to this file: .jsonl, .csv or .txt.")]

# names and encoders
Labels = Annotated[Path | None, typer.Option(help="File of known names: one per line, CSV, JSON or YAML.")]
Label = Annotated[list[str] | None, typer.Option(help="A known name; may be given many times.")]
Space = Annotated[Path, typer.Option(help="Label space file, as `unseen mine` writes it.")]
SpaceInstead = Annotated[Path | None, typer.Option(help="Label space from `unseen mine`, instead of names.", **MORE)]
Encoder = Annotated[str, typer.Option(help="offline, ViT-B/16, a hub id, a model folder or an .onnx file.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ... (default: a GPU if there is one).", **MORE)]
Examples = Annotated[
    str | None,
    typer.Option(help="A few photos of each class: a folder per class, or labelled features of `unseen encode`."),
]

Relatives = Annotated[
    int | None, typer.Option(min=0, help="Words that stand beside your names in WordNet (default: 1,500).", **MORE)
]
Never = Annotated[
    list[str] | None, typer.Option(help="A word of your own that is none of your names; may be given again.", **MORE)
]

# images and features
Photos = Annotated[list[str], typer.Argument(help="Folders, globs, files, image lists, .tar shards, videos.")]
Features = Annotated[
    str,
    typer.Argument(
        help="A folder from `unseen encode`; .safetensors, .parquet, .lance, .npy, .npz; postgresql://... with --table."
    ),
]

# what judges
Detector = Annotated[
    str | None,
    typer.Option(
        help="pooled, online, mcm, neglabel, another that is installed, or your own, module:Class (default: pooled).",
        **MORE,
    ),
]
State = Annotated[Path | None, typer.Option(help="Keep what is learned in this file; go on from it if it is there.")]
SavedState = Annotated[Path, typer.Option("--state", help="State file of `unseen detect` or `score`.")]
Recall = Annotated[
    float | None, typer.Option(help="Share of known images that the threshold should accept (default: 0.95).", **MORE)
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        help="Photos of your names (folder, folder per class, features): they tell where the threshold lies.", **MORE
    ),
]
Only = Annotated[
    list[str] | None, typer.Option(help="Print known, doubtful or unknown images only; may be given again.", **MORE)
]
Live = Annotated[
    bool, typer.Option("--live", help="Print verdicts as images come, not at the end by everything learned.", **MORE)
]
Alarm = Annotated[
    float | None,
    typer.Option(help="Warn when more than this share is unknown; docs/how-to/alarms.md.", **MORE),
]
Learn = Annotated[bool, typer.Option(help="--no-learn scores with the state as it is and changes nothing.", **MORE)]
Report = Annotated[Path | None, typer.Option(help="HTML file to write, with thumbnails.")]

# clusters and services
SERVICE_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "unseen"
ServiceData = Annotated[Path, typer.Option(help="Folder of the service: streams, journals and keys.")]
Ray = Annotated[str | None, typer.Option(help=cluster.HELP, **MORE)]
