"""unseen mine: known names in, a label space with negatives out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli import options, output

if TYPE_CHECKING:
    from unseen import LabelSpace

SHOWN = 20


def mine(
    labels: options.Labels = None,
    label: options.Label = None,
    examples: options.Examples = None,
    encoder: options.Encoder = "offline",
    file: Annotated[Path, typer.Option("-o", "--output", help="Label space file to write.")] = Path(
        "space.safetensors"
    ),
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
    names = spaces.names_from_options(labels, label or (list(taught.folders) if taught and not labels else None))
    if taught:
        taught.check_names(names)
    settings = {"relatives": relatives, "never": never}
    given = {name: value for name, value in settings.items() if value is not None}
    model = encoders.load_encoder(encoder)
    space = spaces.make_space(names, model, **given)
    space = taught.teach(space, model) if taught else space
    space.save(file)
    _print_space(space, file, show=show, as_json=as_json)


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
        path = placed.nouns.path(name, placed.found.get(name))
        tree[name] = {"path": path[:5], "nearest_name": near.get(name), "relatives": {}}
    for one in placed.relatives(len(negatives)):
        if one.word in negatives:
            tree[one.name]["relatives"].setdefault(one.parent, []).append(one.word)
    return tree
