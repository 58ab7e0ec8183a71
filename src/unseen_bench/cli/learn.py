"""unseen learn: examples in, a label space with learned prompts out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace
from unseen.cli import label_space, options, terminal
from unseen.cli.examples import ExampleImages, names_of
from unseen.encoders import load_encoder
from unseen.encoders.hub import HubEncoder
from unseen.errors import DataError, EncoderError
from unseen.images import Image
from unseen.labels.examples import comparable_name
from unseen.labels.mining import NEGATIVES
from unseen_bench.methods.prompts import REGISTRY, Epoch, LearnOptions, PromptLearner, encode_batch
from unseen_bench.methods.prompts import learn as learn_prompts


def learn(
    examples: Annotated[str, typer.Option(help="Photos of your classes, a folder per class.")],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(REGISTRY)}.")] = "locoop",
    encoder: options.Encoder = "ViT-B/16",
    labels: options.Labels = None,
    label: options.Label = None,
    space: Annotated[Path | None, typer.Option(help="Names and negatives from `unseen mine`.")] = None,
    negatives: Annotated[int, typer.Option(help="How many negative labels to mine for the names.")] = NEGATIVES,
    vocabulary: Annotated[int, typer.Option(help="How many words of WordNet to mine them from; 0: all.")] = 10_000,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the examples (default: as published).")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of a context (default: 16).")] = None,
    seed: Annotated[int, typer.Option(help="Of contexts and batches.")] = 0,
    held_out: Annotated[float, typer.Option(min=0, max=0.9, help="Share of examples that say when to stop.")] = 0.25,
    output: Annotated[Path, typer.Option("-o", "--output", help="Label space file to write.")] = Path(
        "prompts.safetensors"
    ),
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Learn prompts for your classes from a few photos of each; write a label space that every detector can read.

    Example: `unseen learn --method locoop --examples known/ --encoder ViT-B/16 -o prompts.safetensors`

    Needs the text tower of a CLIP model (a hub id or a folder; not `offline`). A run that was stopped goes on when the
    same command is given again. Then: `unseen detect photos/ --space prompts.safetensors`.
    """
    chosen = LearnOptions(method, epochs, context=context, seed=seed, held_out=held_out)
    learner = chosen.learner()
    saved = LabelSpace.load(space) if space else None
    found = ExampleImages.find(examples, saved=saved, state=None)
    if found.features is not None:
        raise DataError(f"expected photos to learn prompts from, got features in {examples}; pass a folder per class")
    names = names_of(labels, label, found, saved)
    model = load_encoder(encoder, device=device)
    if not isinstance(model, HubEncoder):
        raise EncoderError(f"expected a CLIP model with a text tower to learn prompts, got {encoder}; use ViT-B/16")
    if saved:
        label_space.check_space(saved, names, model)
    used = saved or label_space.mine_space(names, model, negatives=negatives, vocabulary=vocabulary)
    pictures, own, skipped = read_pictures(found, used.names)
    for key, reason in skipped:
        terminal.err.print(f"{key}  skipped: {reason}", markup=False)
    images = encode_batch(pictures, own, model, learner.needs, seed=seed)
    progress = output.with_suffix(".progress.safetensors")
    made = learn_prompts(used, images, model, chosen, progress=progress, report=print_epoch)
    made.save(output)
    _print_result(made, output, skipped=len(skipped), as_json=as_json)
    raise typer.Exit(terminal.SKIPPED if skipped else terminal.DONE)


def read_pictures(found: ExampleImages, names: Sequence[str]) -> tuple[list[Image], list[int], list[tuple[str, str]]]:
    """The pictures, the index of the name of each, and what could not be read."""
    place = {comparable_name(name): index for index, name in enumerate(names)}
    pictures, label, skipped = [], [], []
    for name, entries in found.folders.items():
        for entry in entries:
            row = entry.read()
            if isinstance(row, Image):
                pictures.append(row)
                label.append(place[comparable_name(name)])
            else:
                skipped.append((row.path, row.reason))
    return pictures, label, skipped


def print_epoch(epoch: Epoch, method: PromptLearner) -> None:
    """Print one line per epoch."""
    held_out = f" · held out {epoch.held_out:.3f}" if epoch.held_out == epoch.held_out else ""
    terminal.err.print(f"epoch {epoch.number} of {method.epochs} · loss {epoch.loss:.3f}{held_out}")


def _print_result(space: LabelSpace, output: Path, *, skipped: int, as_json: bool) -> None:
    learned = {name: value for name, value in space.manifest.items() if name.startswith("learned_")}
    if as_json:
        counts = {"names": len(space.names), "negatives": len(space.negatives), "skipped": skipped}
        terminal.emit({"output": str(output), **counts, **learned, "fingerprint": space.fingerprint})
        return
    terminal.err.print(
        f"{len(space.names):,} names + {len(space.negatives):,} negatives, learned by {learned['learned_by']} in "
        f"{learned['learned_epochs']} epochs from {learned['learned_from']} · written to {output}",
        markup=False,
    )
