"""unseen bench learn: examples in, a label space with learned prompts out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from unseen import LabelSpace, encoders
from unseen.cli import output, spaces
from unseen.cli.known import ExampleImages
from unseen.encoders.hub import HubEncoder
from unseen.errors import DataError, EncoderError
from unseen.images import Image
from unseen.labels.examples import comparable_name
from unseen_bench.methods.prompts import Epoch, LearnOptions, PromptLearner, encode_batch
from unseen_bench.methods.prompts import learn as learn_prompts
from unseen_bench.suites import imagenet_classes


def run(
    examples: str,
    chosen: LearnOptions,
    encoder: str,
    space: Path | None,
    file: Path,
    *,
    as_json: bool,
) -> typer.Exit:
    """Learn prompts and write the label space; 1 where some examples could not be read."""
    learner = chosen.learner()
    saved = LabelSpace.load(space) if space else None
    found = ExampleImages.find(examples, saved=saved, state=None)
    if found.features is not None:
        raise DataError(f"expected photos to learn prompts from, got features in {examples}; pass a folder per class")
    wordnet = dict(zip(*reversed(imagenet_classes()), strict=True))  # ImageNet's own folders have ids for names
    found.folders = {wordnet.get(name, name): entries for name, entries in found.folders.items()}
    found.check_names(saved.names if saved else list(found.folders))
    model = encoders.load_encoder(encoder)
    if not isinstance(model, HubEncoder):
        raise EncoderError(f"expected a CLIP model with a text tower to learn prompts, got {encoder}; use ViT-B/16")
    if saved:
        spaces.check_space(saved, (), model)
    used = saved or spaces.make_space(list(found.folders), model)
    pictures, own, skipped = read_pictures(found, used.names)
    for key, reason in skipped:
        output.print_skipped(key, reason)
    images = encode_batch(pictures, own, model, learner.needs)
    made = learn_prompts(used, images, model, chosen, report=print_epoch)
    made.save(file)
    _print_result(made, file, skipped=len(skipped), as_json=as_json)
    return typer.Exit(output.SKIPPED if skipped else output.DONE)


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
    output.err.print(f"epoch {epoch.number} of {method.epochs} · loss {epoch.loss:.3f}{held_out}")


def _print_result(space: LabelSpace, file: Path, *, skipped: int, as_json: bool) -> None:
    learned = {name: value for name, value in space.manifest.items() if name.startswith("learned_")}
    if as_json:
        counts = {"names": len(space.names), "negatives": len(space.negatives), "skipped": skipped}
        output.emit({"output": str(file), **counts, **learned, "fingerprint": space.fingerprint})
        return
    output.err.print(
        f"{len(space.names):,} names + {len(space.negatives):,} negatives, learned by {learned['learned_by']} in "
        f"{learned['learned_epochs']} epochs from {learned['learned_from']} · written to {file}",
        markup=False,
    )
