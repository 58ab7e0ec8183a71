"""The label space that a command works with: names from options and files, negatives mined or read, words for groups.

Loads torch: commands import it when they run.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor

from unseen import LabelSpace, Session, encoders
from unseen.checkpoint import features_folder, find_space
from unseen.cli import output
from unseen.discover import Vocabulary
from unseen.discover.edits import check_state
from unseen.encoders import Encoder
from unseen.encoders.catalogue import OFFLINE
from unseen.encoders.offline.encoder import OfflineEncoder
from unseen.errors import EncoderError, LabelError
from unseen.features.encoding import stored_vectors
from unseen.features.shards import MANIFEST, read_manifest
from unseen.labels import read_names
from unseen.labels.names import check_new_names, read_words
from unseen.labels.nearest import near_duplicates, similar_names
from unseen.labels.prompts import described_templates
from unseen.labels.relatives import Placed, visible_words
from unseen.labels.vectors import word_vectors
from unseen.progress import shown_progress

SHOWN = 5  # examples that a warning lists
NO_ENCODER, WORDNET = "negatives", "wordnet"  # where the names of groups come from


def names_from_options(path: Path | None, given: list[str] | None) -> list[str]:
    """The names of a file and of the command line, in that order."""
    for name in given or ():  # a list that was given as one name matches no image
        parts = [part.strip() for part in name.split(",") if part.strip()]
        if len(parts) > 1:
            several = " ".join(f"--label {quote(part)}" for part in parts)
            output.warn(f"{name!r} is taken for one name; for {len(parts)} names write: {several}")
    names = [*(read_names(path) if path else ()), *(given or ())]
    if not names:
        raise LabelError("expected the names you know, got none; pass --labels classes.txt or --label NAME")
    return list(check_new_names(names))


def saved_space(space: Path | None, state: Path | None, *, has_names: bool) -> LabelSpace | None:
    """The label space of `--space`, or the one saved beside the state; None for a new one."""
    if state and state.exists():
        check_state(state)
        return LabelSpace.load(space) if space else find_space(state)
    if space:
        return LabelSpace.load(space)
    if state and not has_names:
        raise LabelError(
            f"expected names, or a state that knows them, got no file at {state}; pass --labels for the first run"
        )
    return None


def open_session(state: Path) -> Session:
    """The session that a state was saved by."""
    check_state(state)
    return Session.load(state)


def vectors_beside(state: Path, space: LabelSpace) -> Mapping[tuple[str, str], Tensor]:
    """The vectors that `detect` kept of the images of a state, by key and identity; none of another encoder."""
    folder = features_folder(state)
    if not (folder / MANIFEST).is_file():
        return {}
    made_by = read_manifest(folder / MANIFEST)["fingerprint"]
    return stored_vectors(folder) if made_by == space.manifest.get("encoder_fingerprint") else {}


def encoder_name(space: LabelSpace) -> str:
    """What the encoder of a label space is called here: UNSEEN_ENCODER, where it has moved since."""
    return os.environ.get("UNSEEN_ENCODER") or space.encoder


def encoder_of(space: LabelSpace) -> Encoder:
    """The encoder of a label space; refuse another one."""
    model = encoders.load_encoder(encoder_name(space), device=None)
    check_space(space, [], model)
    return model


def make_space(names: Sequence[str], encoder: Encoder, **options: Any) -> LabelSpace:
    """A new label space with its negatives, as in Python; print what is odd about the names."""
    if meant := Placed(tuple(names)).misspelt:
        few = ", ".join(f"{name!r}: did you mean {word!r}?" for name, word in list(meant.items())[:SHOWN])
        output.warn(f"no words that WordNet has: {few}")
    with output.interruptible():
        space = LabelSpace.build(names, encoder, **options)
    warn_near_duplicates(space)
    warn_strange(names, encoder)
    return space


def check_space(space: LabelSpace, names: Sequence[str], encoder: Encoder, *, never: Sequence[str] = ()) -> None:
    """Refuse names, own negatives or an encoder that a saved label space was not made with."""
    if more := sorted(set(never) - set(space.negatives)):
        raise LabelError(
            f"expected --never for a new label space, got one that is saved without {more[0]!r}; make another with "
            "unseen mine, or start another state"
        )
    if names and tuple(names) != space.names:
        raise LabelError(
            f"expected the names of the label space, got others: {changed_names(space.names, names)}; leave out "
            "--label and --labels to go on, change names with unseen promote and unseen retire, or start another state"
        )
    made_by = space.manifest.get("encoder_fingerprint", encoder.fingerprint)
    if made_by != encoder.fingerprint:
        raise EncoderError(
            f"expected the encoder of this label space, {space.encoder} ({made_by[:8]}), got {encoder.name} "
            f"({encoder.fingerprint[:8]}); pass --encoder {space.encoder}, or set UNSEEN_ENCODER"
        )


def changed_names(before: Sequence[str], after: Sequence[str]) -> str:
    """What was added and removed between two lists of names.

    >>> changed_names(("cat", "dog"), ("dog", "cow"))
    "added 'cow', removed 'cat'"
    """
    added, removed = ([one for one in new if one not in old] for new, old in ((after, before), (before, after)))
    parts = [
        f"{what} {', '.join(map(repr, names))}" for what, names in (("added", added), ("removed", removed)) if names
    ]
    return ", ".join(parts) or "the same in another order"


def warn_near_duplicates(space: LabelSpace) -> None:
    """Print which negatives nearly repeat a known name, and which names say nearly the same."""
    if pairs := near_duplicates(space):
        few = ", ".join(f"{pair.name} ~ {pair.negative} ({pair.cosine:.2f})" for pair in pairs[:SHOWN])
        output.warn(f"{len(pairs)} negatives nearly repeat a known name: {few}")
    if alike := similar_names(space):
        few = ", ".join(f"{one} ~ {other} ({cosine:.2f})" for one, other, cosine in alike[:SHOWN])
        output.warn(
            f"{len(alike)} pair{'s' * (len(alike) > 1)} of your names say nearly the same, so images of one "
            f"may get the name of the other: {few}; keep one of each"
        )


def warn_strange(names: Sequence[str], encoder: Encoder) -> None:
    """Print which names the offline text tower cannot know: not English, or far from what it was fitted on."""
    foreign = [name for name in names if not name.isascii()] if encoder.name in OFFLINE else []
    if foreign:
        output.warn(
            f"the offline text tower knows English only, got {', '.join(foreign[:SHOWN])}; use English names, or "
            "a multilingual CLIP with --encoder"
        )
    unfamiliar = encoder.text_tower.unfamiliar(names) if isinstance(encoder, OfflineEncoder) else []
    if unfamiliar:
        count = "1 of the names is" if len(unfamiliar) == 1 else f"{len(unfamiliar)} of the names are"
        output.warn(
            f"{count} far from every name that the offline text tower was fitted on: "
            f"{', '.join(unfamiliar[:SHOWN])}; use plainer words, or a real CLIP (docs/offline-encoder.md)"
        )


def load_vocabulary(words: str, space: LabelSpace) -> Vocabulary:
    """The words that groups may be called by: WordNet's, a list of one's own, or the negatives of the label space."""
    if words == NO_ENCODER or (words == WORDNET and not encoder_name(space)):
        return Vocabulary.of_space(space)
    every = visible_words() if words == WORDNET else read_words(Path(words))
    output.say(f"reading {len(every):,} words (each is encoded once and then kept)")
    with output.interruptible(), shown_progress("words") as progress:
        vectors = word_vectors(every, described_templates(space.prompt), encoder_of(space), progress=progress)
    return Vocabulary(tuple(every), vectors)
