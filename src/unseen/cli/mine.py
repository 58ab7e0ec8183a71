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
    from unseen.labels import Corpus, Prompt

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
    negatives: Annotated[
        int | None,
        typer.Option(
            help="How many negatives (default: 5,000); -1 keeps the share the rule's paper keeps.", **options.MORE
        ),
    ] = None,
    miner: Annotated[
        str | None,
        typer.Option(
            help="Rule that picks negatives: wordnet, neglabel, csp, dnm ... (default: wordnet).", **options.MORE
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Words of WordNet to mine negatives from; 0 reads all 138,495 (default: twice the negatives).",
            **options.MORE,
        ),
    ] = None,
    words: Annotated[
        Path | None, typer.Option(help="Your own word list to mine, instead of WordNet.", **options.MORE)
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Template such as 'The nice {}.', or nice, neglabel, photo, csp, or learned vectors, .safetensors.",
            **options.MORE,
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Encode every word, also where codes tell which cannot be chosen.", **options.MORE
        ),
    ] = False,
) -> None:
    """Mine negatives for your names and write a label space.

    Example: `unseen mine --labels classes.txt --encoder offline -o space.safetensors --show`

    With the offline encoder, codes in the package tell which words may be chosen, and only these are encoded (seconds;
    at least 99 % of the negatives are those of --exact). The first run with another encoder encodes the whole corpus
    (minutes); later runs read it.

    Examples of the names move them towards their images (docs/examples.md); all commands and the service read the file.

    Example: `unseen mine --examples known/ -o space.safetensors`
    """
    from unseen import LabelSpace, encoders
    from unseen.cli import known, spaces
    from unseen.labels.miners import DEFAULT_MINER
    from unseen.labels.mining import NEGATIVES

    taught = known.ExampleImages.find(examples, saved=None, state=None) if examples else None
    wanted = named_spaces(labels or [], label or (list(taught.folders) if taught and not labels else None))
    if taught:
        if len(wanted) > 1:
            raise LabelError("expected one label space for --examples, got several; mine them one by one")
        taught.check_names(*wanted.values())
    files = output_files(file, wanted)
    miner = miner or DEFAULT_MINER
    settings: dict[str, Any] = {
        "negatives": {None: NEGATIVES, -1: None}.get(negatives, negatives),
        "miner": miner,
        "prompt": _prompt(prompt),
        "corpus": _corpus(words, vocabulary, miner),
    }
    model = encoders.load_encoder(encoder)
    with spaces.words_bar() as progress:
        made = {
            name: LabelSpace.build(own, model, progress=progress, exact=exact, **settings)
            for name, own in wanted.items()
        }
    spaces.warn_strange([one for own in wanted.values() for one in own], model)
    for name, space in made.items():
        space = taught.teach(space, model, recall=known.RECALL) if taught else space
        space.save(files[name])
        _print_space(space, files[name], show=show, as_json=as_json)


def _corpus(words: Path | None, vocabulary: int | None, miner: str) -> Corpus | None:
    """The words to mine, None where the rule says which."""
    from unseen.labels import word_list
    from unseen.labels.miners import find_miner

    if words:
        return word_list(words)
    return None if vocabulary is None else find_miner(miner).corpus().thinned(vocabulary)


def _prompt(prompt: str | None) -> str | Prompt | None:
    """The prompt of that name or template, or learned vectors from a file."""
    from unseen.labels import LearnedPrompts

    return LearnedPrompts.load(Path(prompt)) if prompt and prompt.endswith(".safetensors") else prompt


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
    from unseen.cli import spaces
    from unseen.labels.nearest import near_duplicates, nearest_names, nearest_negatives

    if as_json:
        row = {
            "output": str(file),
            "names": len(space.names),
            "negatives": len(space.negatives),
            "encoder": space.encoder,
            "prompt": space.prompt,
            "fingerprint": space.fingerprint,
            "manifest": space.manifest,
            "near_duplicates": [vars(pair) for pair in near_duplicates(space)],
        }
        near = {name: [vars(pair) for pair in pairs] for name, pairs in nearest_negatives(space).items()}
        output.emit(row | ({"nearest_names": nearest_names(space), "nearest_negatives": near} if show else {}))
        return
    if show:
        others = nearest_names(space)
        for name, pairs in list(nearest_negatives(space).items())[:SHOWN]:
            nearest = "{} {:.2f}".format(*others[name]) if name in others else "—"
            print(f"{name}  nearest name {nearest}")
            print(f"    nearest negatives {', '.join(f'{pair.negative} {pair.cosine:.2f}' for pair in pairs)}")
        if len(space.names) > SHOWN:
            output.say(f"… and {len(space.names) - SHOWN:,} more names: --show --json prints all")
        print(f"most negative: {', '.join(space.negatives[:SHOWN])}")
    spaces.warn_near_duplicates(space)
    output.say(
        f"{len(space.names):,} names + {len(space.negatives):,} negatives ({space.manifest['corpus']}, "
        f"miner {space.manifest['miner']}, fingerprint {space.fingerprint[:8]}) · encoder {space.encoder} · "
        f"written to {file}"
    )
