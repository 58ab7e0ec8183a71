"""Edits of a label space: a name more, a name less, a name by another word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import LabelError
from unseen.labels.examples import Examples
from unseen.labels.names import is_writable
from unseen.labels.nearest import NEAR
from unseen.labels.space import LabelSpace, Origin
from unseen.vocabulary import canonical_spelling

SHOWN = 5  # names that a message lists


def check_new_name(names: Sequence[str], name: str) -> str:
    """A name without blanks around it; refuse one that is known, by any spelling, or that cannot be written.

    >>> check_new_name(["sea urchin"], " starfish ")
    'starfish'
    """
    if not (stripped := name.strip()):
        raise LabelError("expected a name, got a blank; write what the images show")
    if not is_writable(stripped):
        raise LabelError(f"expected a name of letters, got {stripped!r} with control characters; remove them")
    taken = {canonical_spelling(one): one for one in names}
    if (spelling := canonical_spelling(stripped)) in taken:
        raise LabelError(
            f"expected a new name, got {stripped!r}, which is known as {taken[spelling]!r}; choose another"
        )
    return stripped


def with_name(
    space: LabelSpace, name: str, anchor: Float[Tensor, " d"], images: Float[Tensor, "n d"] | None = None
) -> LabelSpace:
    """The label space with one more known name; negatives that mean the same are removed.

    Those are negatives spelled like it, with nearly its vector, or that describe its `images` as the frozen text sees
    them.
    """
    name = check_new_name(space.names, name)
    row = normalize(anchor.to(space.id_anchors), dim=0).unsqueeze(0)
    others = space.keeping((~_conflicts(space, name, row, images)).nonzero().flatten().tolist())
    return replace(others, names=(*space.names, name), id_anchors=torch.cat([space.id_anchors, row]))


def _conflicts(
    space: LabelSpace,
    name: str,
    row: Float[Tensor, "1 d"],
    images: Float[Tensor, "n d"] | None,
    *,
    tau: float = 0.01,
    claimed: float = 0.1,
) -> Bool[Tensor, " L"]:
    """Which negatives mean the same as a new name: alike as words, or with this share of the images of the name."""
    spelling = canonical_spelling(name).removesuffix("s")
    same = [canonical_spelling(word).removesuffix("s") == spelling for word in space.negatives]
    found = torch.tensor(same, dtype=torch.bool, device=row.device) | ((space.ood_anchors @ row.T).flatten() > NEAR)
    if images is None or not len(images) or not len(space.negatives):
        return found
    text = torch.cat([space.id_anchors, row, space.ood_anchors])
    shares = (images.to(text) @ text.T / tau).softmax(1).mean(0)
    return found | (shares[len(space.names) + 1 :] > claimed)


def without_name(space: LabelSpace, name: str) -> LabelSpace:
    """The label space with a known name among the negatives: images of it are unknown from now on."""
    place = place_of(space, name)
    if len(space.names) == 1:
        raise LabelError(f"expected at least two known names, got {name!r} alone; promote another one first")
    rest = [other for other in range(len(space.names)) if other != place]
    others = replace(
        space,
        names=tuple(space.names[other] for other in rest),
        id_anchors=space.id_anchors[rest],
        examples=_examples_without(space.examples, place),
        spared=_examples_without(space.spared, place),
    )
    return others.adding(name, space.id_anchors[place], Origin("never"))


def _examples_without(examples: Examples | None, place: int) -> Examples | None:
    """The examples of the other names, by their new places."""
    if examples is None or not bool((examples.label != place).any()):
        return None
    kept = examples[examples.label != place]
    return replace(kept, label=kept.label - (kept.label > place).long())


def renamed(space: LabelSpace, old: str, new: str) -> LabelSpace:
    """The label space with a known name by another word; its vector stays."""
    place_of(space, old)
    new = check_new_name([one for one in space.names if one != old], new)
    stays = [row for row, word in enumerate(space.negatives) if canonical_spelling(word) != canonical_spelling(new)]
    others = space.keeping(stays)
    origins = tuple(one._replace(name=new) if one.name == old else one for one in others.origins)
    return replace(others, names=tuple(new if one == old else one for one in space.names), origins=origins)


def negative_vector(space: LabelSpace, name: str) -> Float[Tensor, " d"] | None:
    """The vector of the negative that is spelled like a name, None where there is none."""
    words = list(map(canonical_spelling, space.negatives))
    spelling = canonical_spelling(name)
    return space.ood_anchors[words.index(spelling)] if spelling in words else None


def place_of(space: LabelSpace, name: str) -> int:
    """The index of a known name."""
    if name not in space.names:
        more = f" and {len(space.names) - SHOWN:,} more" if len(space.names) > SHOWN else ""
        known = ", ".join(map(repr, space.names[:SHOWN]))
        raise LabelError(f"expected a known name, got {name!r}; there are {known}{more}")
    return space.names.index(name)
