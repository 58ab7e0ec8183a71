"""unseen promote: a group of unknown images becomes a known name."""

from typing import Annotated

import typer

from unseen.cli import label_space, options, saved_state, vocabulary
from unseen.cli.edit_output import apply_and_print
from unseen.discover import promote as promoted
from unseen.discover.relabel import members
from unseen.labels.edits import check_new_name, negative_vector
from unseen.labels.prompts import described_templates


def promote(
    group: Annotated[str, typer.Argument(help="Number of a group (`unseen group`), or the key of one kept image.")],
    name: Annotated[str, typer.Argument(help="What it shows.")],
    state: saved_state.State,
    space: saved_state.Space = None,
    encoder: vocabulary.EncoderName = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a group of unknown images a known name; its images are judged again, and what was learned stays.

    Example: `unseen promote 3 "sea urchin" --state state.safetensors`

    Negatives that mean the same are removed. `unseen undo --state STATE` takes it back.
    """
    session = saved_state.open_session(state, space)
    labels, keys = session.detector.labels, session.reservoir.images.keys
    which = int(group) if group.isdecimal() and group not in keys else group
    members(session, which)  # refused before an encoder is loaded
    check_new_name(labels.names, name)
    text = None if encoder or labels.encoder else negative_vector(labels, name)
    if text is None:
        model = vocabulary.text_encoder(labels, encoder)
        label_space.warn_foreign([name], model)
        label_space.warn_unfamiliar([name], model)
        text = described_templates(labels.prompt).encode([name], model)[0]
    apply_and_print(lambda session: promoted(session, which, name, text), state, space, as_json=as_json)
