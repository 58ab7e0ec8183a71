"""unseen mine: known names in, a label space with negatives out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli import options, terminal
from unseen.cli.calibrate import RECALL
from unseen.cli.examples import ExampleImages
from unseen.cli.label_space import names_from_options, warn_near_duplicates, warn_strange, words_bar
from unseen.encoders import load_encoder
from unseen.errors import LabelError
from unseen.labels import MINERS, PROMPTS, Corpus, LabelSpace, LearnedPrompts, Prompt, read_names, word_list
from unseen.labels.miners import DEFAULT_MINER, find_miner
from unseen.labels.mining import NEGATIVES
from unseen.labels.nearest import near_duplicates, nearest_names, nearest_negatives

SHOWN = 20


def mine(
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of known names: one per line, CSV, JSON or YAML. Several, or a folder: one space each."
        ),
    ] = None,
    label: options.Label = None,
    encoder: options.Encoder = "offline",
    miner: Annotated[str, typer.Option(help=f"Rule that picks negatives: {', '.join(MINERS)}.")] = DEFAULT_MINER,
    negatives: Annotated[
        int, typer.Option(help="How many negatives; -1 keeps the share the rule's paper keeps.")
    ] = NEGATIVES,
    vocabulary: options.Vocabulary = None,
    prompt: Annotated[
        str | None, typer.Option(help=f"Template such as 'The nice {{}}.', or one of: {', '.join(PROMPTS)}.")
    ] = None,
    learned: Annotated[Path | None, typer.Option(help="Learned vectors of the known names, .safetensors.")] = None,
    words: Annotated[Path | None, typer.Option(help="Your own word list to mine, instead of WordNet.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="WordNet list to leave out, such as noun.plant; replaces the rule's own.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Label space file to write; a folder for several.")
    ] = Path("space.safetensors"),
    exact: Annotated[
        bool, typer.Option("--exact", help="Encode every word, also where codes tell which cannot be chosen.")
    ] = False,
    examples: options.Examples = None,
    show: Annotated[bool, typer.Option("--show", help="Print what lies nearest to each name, to judge it.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Mine negatives for your names and write a label space.

    Example: `unseen mine --labels classes.txt --encoder offline -o space.safetensors --show`

    With the offline encoder, codes in the package tell which words may be chosen, and only these are encoded (seconds;
    at least 99 % of the negatives are those of --exact). The first run with another encoder encodes the whole corpus
    (minutes); later runs read it.

    Examples of the names move them towards their images (docs/examples.md); all commands and the service read the file.

    Example: `unseen mine --examples known/ -o space.safetensors`
    """
    taught = ExampleImages.find(examples, saved=None, state=None) if examples else None
    wanted = named_spaces(labels or [], label or (list(taught.folders) if taught and not labels else None))
    if taught:
        _check_examples(taught, wanted)
    files = output_files(output, wanted)
    settings: dict[str, Any] = {
        "negatives": None if negatives == -1 else negatives,
        "miner": miner,
        "prompt": _prompt(prompt, learned),
        "corpus": _corpus(words, vocabulary, miner),
        "excluded": exclude or None,
    }
    with words_bar() as progress:
        model, spaces = load_encoder(encoder), {}
        for name, own in wanted.items():
            space = LabelSpace.build(own, model, progress=progress, exact=exact, **settings)
            spaces[name] = taught.teach(space, model, recall=RECALL) if taught else space
            spaces[name].save(files[name])
    warn_strange([one for own in wanted.values() for one in own], model)
    for name, space in spaces.items():
        _print_space(space, files[name], show=show, as_json=as_json)


def _corpus(words: Path | None, vocabulary: int | None, miner: str) -> Corpus | None:
    """The words to mine, None where the rule says which."""
    if words:
        return word_list(words)
    return None if vocabulary is None else find_miner(miner).corpus().thinned(vocabulary)


def _check_examples(taught: ExampleImages, wanted: Mapping[str, Sequence[str]]) -> None:
    if len(wanted) > 1:
        raise LabelError("expected one label space for --examples, got several; mine them one by one")
    taught.check_names(*wanted.values())


def named_spaces(paths: Sequence[Path], given: list[str] | None) -> dict[str, list[str]]:
    """What to call each label space, and its names: one per file, or one of the names given."""
    files = [file for path in paths for file in (sorted(path.glob("*.txt")) if path.is_dir() else [path])]
    if paths and not files:
        raise LabelError(f"expected text files in {paths[0]}, got none; put one .txt of names per label space there")
    if len(files) < 2:
        return {"space": names_from_options(files[0] if files else None, given)}
    if given:
        raise LabelError(f"expected --label with at most one file, got {len(files)} files; put the names into them")
    if len({file.stem for file in files}) < len(files):
        raise LabelError("expected files with different names, got some twice; rename them: spaces are called alike")
    return {file.stem: list(read_names(file)) for file in files}


def output_files(output: Path, wanted: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """The file of each label space: the output itself for one, files in that folder for several."""
    if len(wanted) == 1:
        return dict.fromkeys(wanted, output)
    if output.suffix:
        raise LabelError(f"expected a folder for {len(wanted)} label spaces, got {output}; pass for example -o spaces")
    return {name: output / f"{name}.safetensors" for name in wanted}


def _print_space(space: LabelSpace, output: Path, *, show: bool, as_json: bool) -> None:
    if as_json:
        terminal.emit(_summary(space, output, show=show))
        return
    if show:
        _show(space)
    warn_near_duplicates(near_duplicates(space))
    terminal.err.print(
        f"{len(space.names):,} names + {len(space.negatives):,} negatives ({space.manifest['corpus']}, "
        f"miner {space.manifest['miner']}, fingerprint {space.fingerprint[:8]}) · encoder {space.encoder} · "
        f"written to {output}"
    )


def _prompt(prompt: str | None, learned: Path | None) -> str | Prompt | None:
    if prompt and learned:
        raise LabelError("expected --prompt or --learned, got both; learned vectors need no template")
    return LearnedPrompts.load(learned) if learned else prompt


def _show(space: LabelSpace) -> None:
    others = nearest_names(space)
    for name, pairs in list(nearest_negatives(space).items())[:SHOWN]:
        negatives = ", ".join(f"{pair.negative} {pair.cosine:.2f}" for pair in pairs)
        nearest = "{} {:.2f}".format(*others[name]) if name in others else "—"
        terminal.out.print(f"{name}  nearest name {nearest}", markup=False)
        terminal.out.print(f"    nearest negatives {negatives}", markup=False)
    if len(space.names) > SHOWN:
        terminal.err.print(f"… and {len(space.names) - SHOWN:,} more names: --show --json prints all")
    terminal.out.print(f"most negative: {', '.join(space.negatives[:SHOWN])}", markup=False)


def _summary(space: LabelSpace, output: Path, *, show: bool) -> dict[str, object]:
    summary: dict[str, object] = {
        "output": str(output),
        "names": len(space.names),
        "negatives": len(space.negatives),
        "encoder": space.encoder,
        "prompt": space.prompt,
        "fingerprint": space.fingerprint,
        "manifest": space.manifest,
        "near_duplicates": [vars(pair) for pair in near_duplicates(space)],
    }
    if show:
        summary["nearest_names"] = nearest_names(space)
        summary["nearest_negatives"] = {k: [vars(p) for p in pairs] for k, pairs in nearest_negatives(space).items()}
    return summary
