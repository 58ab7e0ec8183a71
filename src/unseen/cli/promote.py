"""unseen promote: a group of unknown images becomes a known name."""

from typing import Annotated

import typer

from unseen import Session
from unseen.cli import label_space, options, saved_state, vocabulary
from unseen.cli.edited import print_record
from unseen.discover import Edited, edits
from unseen.discover import promote as promoted
from unseen.labels.corpus import canonical_spelling


def promote(
    group: Annotated[str, typer.Argument(help="Number of a group (`unseen group`), or the key of one kept image.")],
    name: Annotated[str, typer.Argument(help="What it shows.")],
    state: saved_state.State,
    space: saved_state.Space = None,
    encoder: vocabulary.EncoderName = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a known name of a group of unknown images; what was learned goes on, and its images are judged again.

    Example: `unseen promote 3 "sea urchin" --state state.safetensors`

    Negatives that say the same step aside. `unseen undo --state STATE` takes it back.
    """
    labels = saved_state.open_session(state, space).detector.labels
    words = dict(zip(map(canonical_spelling, labels.negatives), labels.ood_anchors, strict=True))
    text = words.get(canonical_spelling(name)) if not (encoder or labels.encoder) else None
    if text is None:
        model = vocabulary.text_encoder(labels, encoder)
        label_space.check_space(labels, [], model)
        text = vocabulary.prompt_of(labels).encode([name], model)[0]

    def edit(session: Session) -> Edited:
        return promoted(session, int(group) if group.isdigit() else group, name, text)

    print_record(edits.apply(state, saved_state.given_space(space), edit).record, as_json=as_json, state=state)
