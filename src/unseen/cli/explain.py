"""unseen explain: why an image got its verdict."""

from typing import Annotated

import typer
from jaxtyping import Float
from torch import Tensor

from unseen import Session
from unseen.cli import label_space, options, saved_state, terminal
from unseen.discover import explain as explanation_of
from unseen.encoders import load_encoder
from unseen.errors import DataError
from unseen.features import stream_images
from unseen.images import find_images


def explain(
    photos: Annotated[list[str], typer.Argument(help="Photos, or keys of some that the state has kept.")],
    state: saved_state.State,
    space: saved_state.Space = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder of the label space, if it has another name.")] = None,
    device: options.Device = None,
    count: Annotated[int, typer.Option(min=1, help="Names, negatives and earlier images to list.")] = 3,
    as_json: options.AsJson = False,
) -> None:
    """Print why a photo is known or unknown: nearest names, nearest negatives, similar earlier photos, margin.

    Example: `unseen explain photos/b.jpg --state state.safetensors`

    Nothing is learned. A photo that the state has kept is explained from its vector, without an encoder.
    """
    session = saved_state.open_session(state, space)
    vectors = [one for photo in photos for one in _vectors(session, photo, encoder, device)]
    for one in (explanation_of(session, z, key=key, count=count) for key, z in vectors):
        if as_json:
            terminal.emit(one.row())
        else:
            print("\n".join(one.lines()))


def _vectors(
    session: Session, photo: str, encoder: str | None, device: str | None
) -> list[tuple[str, Float[Tensor, " d"]]]:
    """Key and vector of a kept image, or of the images at a path."""
    kept = session.reservoir.images
    called = kept.names()
    if photo in called:
        return [(photo, kept.features[called.index(photo)])]
    try:
        entries = find_images(photo)
    except DataError as error:
        raise DataError(
            f"{error}, or pass the key of one of the {len(kept):,} images that the state has kept"
        ) from error
    labels = session.detector.labels
    model = load_encoder(encoder or labels.encoder, device=device)
    label_space.check_space(labels, [], model)
    batches = stream_images(entries, model)
    rows = [(image.path, z) for batch, vectors in batches for image, z in zip(batch, vectors, strict=True)]
    if not rows:
        raise DataError(f"expected a photo that can be read, got none in {photo}; pass a photo, such as photos/b.jpg")
    return rows
