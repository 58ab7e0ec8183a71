"""unseen mine: known names in, a label space with negatives out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli import options, output
from unseen.errors import LabelError

if TYPE_CHECKING:
    from unseen import LabelSpace

SHOWN = 20


def mine(
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of known names: one per line, CSV, JSON or YAML. Several, or a folder: one space each."
        ),
    ] = None,
    label: options.Label = None,
    examples: options.Examples = None,
    encoder: options.Encoder = "offline",
    file: Annotated[
        Path, typer.Option("-o", "--output", help="Label space file to write; a folder for several.")
    ] = Path("space.safetensors"),
    show: Annotated[bool, typer.Option("--show", help="Print what lies nearest to each name, to judge it.")] = False,
    as_json: options.AsJson = False,
    relatives: options.Relatives = None,
    never: options.Never = None,
) -> None:
    """Choose negatives for your names and write a label space.

    Example: `unseen mine --labels classes.txt --encoder offline -o space.safetensors --show`

    Negatives are words that your images might show instead: relatives of the names in WordNet, everyday things, and
    your own: `--never cello`. None means the same as a name, or is a kind of one, or what one is a kind of.

    Examples of the names move them towards their images (docs/examples.md); all commands and the service read the file.

    Example: `unseen mine --examples known/ -o space.safetensors`
    """
    from unseen import encoders
    from unseen.cli import known, spaces

    taught = known.ExampleImages.find(examples, saved=None, state=None) if examples else None
    wanted = named_spaces(labels or [], label or (list(taught.folders) if taught and not labels else None))
    if taught:
        if len(wanted) > 1:
            raise LabelError("expected one label space for --examples, got several; mine them one by one")
        taught.check_names(*wanted.values())
    files = output_files(file, wanted)
    settings = {"relatives": relatives, "never": never}
    given = {name: value for name, value in settings.items() if value is not None}
    model = encoders.load_encoder(encoder)
    made = {name: spaces.make_space(own, model, **given) for name, own in wanted.items()}
    for name, space in made.items():
        space = taught.teach(space, model) if taught else space
        space.save(files[name])
        _print_space(space, files[name], show=show, as_json=as_json)


def named_spaces(paths: Sequence[Path], given: list[str] | None) -> dict[str, list[str]]:
    """What to call each label space, and its names: one per file, or one of the names given."""
    from unseen.cli import spaces
    from unseen.labels import read_names

    files = [file for path in paths for file in (sorted(path.glob("*.txt")) if path.is_dir() else [path])]
    if paths and not files:
        raise LabelError(f"expected text files in {paths[0]}, got none; put one .txt of names per label space there")
    if len(files) < 2:
        return {"space": spaces.names_from_options(files[0] if files else None, given)}
    if given:
        raise LabelError(f"expected --label with at most one file, got {len(files)} files; put the names into them")
    if len({file.stem for file in files}) < len(files):
        raise LabelError("expected files with different names, got some twice; rename them: spaces are called alike")
    return {file.stem: list(read_names(file)) for file in files}


def output_files(file: Path, wanted: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """The file of each label space: the output itself for one, files in that folder for several."""
    if len(wanted) == 1:
        return dict.fromkeys(wanted, file)
    if file.suffix:
        raise LabelError(f"expected a folder for {len(wanted)} label spaces, got {file}; pass for example -o spaces")
    return {name: file / f"{name}.safetensors" for name in wanted}


def _print_space(space: LabelSpace, file: Path, *, show: bool, as_json: bool) -> None:
    from unseen.labels.nearest import near_duplicates

    if as_json:
        row = {
            "output": str(file),
            "names": len(space.names),
            "negatives": len(space.negatives),
            "kinds": space.kinds,
            "encoder": space.encoder,
            "prompt": space.prompt,
            "fingerprint": space.fingerprint,
            "manifest": space.manifest,
            "near_duplicates": [vars(pair) for pair in near_duplicates(space)],
        }
        output.emit(row | ({"tree": _tree(space)} if show else {}))
        return
    if show:
        tree = _tree(space)
        for around in list(tree.values())[:SHOWN]:
            print(" < ".join(around["path"]))
            if near := around["nearest_name"]:
                print("    nearest name  {} {:.2f}".format(*near))
            for parent, words in around["relatives"].items():
                print(f"    {parent}:  {', '.join(words[:SHOWN])}" + (" ..." if len(words) > SHOWN else ""))
        if len(tree) > SHOWN:
            output.say(f"… and {len(tree) - SHOWN:,} more names: --show --json prints all")
    output.say(f"{space.in_words} · fingerprint {space.fingerprint[:8]} · written to {file}")


def _tree(space: LabelSpace) -> dict[str, dict[str, Any]]:
    """Around each name: what it is a kind of, its relatives by the parent they share, and the name most like it."""
    from unseen.labels.nearest import nearest_names
    from unseen.labels.relatives import Placed

    placed, negatives = Placed(space.names), set(space.negatives)
    tree: dict[str, dict[str, Any]] = {}
    near = nearest_names(space)
    for name in space.names:
        path = placed.nouns.path(name)
        tree[name] = {"path": path[:5], "nearest_name": near.get(name), "relatives": {}}
    for one in placed.relatives(len(negatives)):
        if one.word in negatives:
            tree[one.name]["relatives"].setdefault(one.parent, []).append(one.word)
    return tree
