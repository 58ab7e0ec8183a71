"""Names in, a label space out: `build` gives them negatives, which are words that their images might show instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import LabelError
from unseen.labels.examples import Examples
from unseen.labels.names import check_names, check_new_names
from unseen.labels.prompts import NICE, Prompt, PromptTemplates, TextEncoder, as_prompt, text_fingerprint
from unseen.labels.relatives import Placed, everyday_words
from unseen.labels.residuals import with_examples
from unseen.labels.space import LabelSpace, Origin
from unseen.labels.vectors import word_vectors
from unseen.progress import Progress, shown_progress
from unseen.vocabulary import canonical_spelling

VOCABULARY = "WordNet 3.1"


@dataclass(frozen=True)
class NegativeCounts:
    """How many negatives of each kind commands, Python and service take; `benchmarks/vocabulary.py` compares others."""

    relatives: int = 1_500
    everyday: int = 1_500
    far: int = 0


def build(
    names: Sequence[str],
    encoder: TextEncoder,
    *,
    relatives: int = NegativeCounts.relatives,
    everyday: int = NegativeCounts.everyday,
    far: int = NegativeCounts.far,
    never: Sequence[str] = (),
    prompt: str | Sequence[str] | Prompt | None = None,
    cache: Path | None = None,
    examples: Examples | None = None,
    progress: Progress | None = None,
) -> LabelSpace:
    """`names` with negatives: `relatives`, words that stand beside them in WordNet, `everyday` words, and others.

    `never` are words of your own that images are not to be named by. `far` words are, of twice as many, those with the
    least likeness to the names. None of them means the same as a name, or a kind of it, or what it is a kind of.
    Vectors of words are kept under `cache`. `progress(done, total)` is called while words are encoded; without it, a
    terminal shows a bar. `examples` of the names move their anchors, as far as examples left out agree
    (`labels.with_examples`).

    >>> class Tower:                      # stands for what `load_encoder` returns
    ...     name, dim, fingerprint = "letters", 26, "first"
    ...     def texts(self, prompts):
    ...         counts = [[p.count(chr(97 + i)) + 0.1 for i in range(26)] for p in prompts]
    ...         return torch.nn.functional.normalize(torch.tensor(counts))
    >>> build(["violin"], Tower(), relatives=2, everyday=2, never=["toy violin"]).negatives
    ('toy violin', 'cello', 'double bass', 'person', 'car')
    """
    names = check_new_names(names)
    for what, count in (("relatives", relatives), ("everyday", everyday), ("far", far)):
        if count < 0:
            raise LabelError(f"expected a number of {what} of at least 0, got {count}; 0 takes none")
    worded = NICE if prompt is None else as_prompt(prompt)
    words = worded if isinstance(worded, PromptTemplates) else NICE  # learned vectors cover the names only
    anchors = worded.encode(names, encoder).cpu()
    with shown_progress("words", progress) as report:
        encode = partial(word_vectors, prompt=words, encoder=encoder, cache=cache, progress=report)
        placed = _place(names, anchors, encode)
        origins = dict.fromkeys(_own(never, names), Origin("never"))
        origins |= {one.word: Origin("relative", one.name) for one in placed.relatives(relatives, besides=origins)}
        origins |= dict.fromkeys(placed.everyday(everyday, besides=origins), Origin("everyday"))
        others = placed.others(2 * far, besides=origins)
        vectors, other_vectors = encode([*origins, *others]).split([len(origins), len(others)])
    rows = _farthest(other_vectors, anchors, far)
    origins |= dict.fromkeys([others[row] for row in rows.tolist()], Origin("far"))
    space = LabelSpace(
        names=names,
        negatives=tuple(origins),
        id_anchors=anchors,
        ood_anchors=torch.cat([vectors, other_vectors[rows]]),
        prompt=worded.description,
        encoder=encoder.name,
        manifest={
            "corpus": VOCABULARY,
            "negatives": f"{relatives} relatives, {everyday} everyday, {far} far",
            "word_prompt": words.description,
            "encoder_fingerprint": encoder.fingerprint,
            "text_fingerprint": text_fingerprint(encoder),
        },
        origins=tuple(origins.values()),
    )
    return with_examples(space, examples) if examples is not None else space


def _own(never: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """A user's own negatives; refuse those that are names."""
    known = set(map(canonical_spelling, names))
    if both := [word for word in check_names("never", never) if canonical_spelling(word) in known]:
        raise LabelError(f"expected negatives that are not known names, got {both[:3]} as both; remove one")
    return tuple(never)


def _place(
    names: tuple[str, ...], anchors: Float[Tensor, "K d"], encode: Callable[[Sequence[str]], Float[Tensor, "n d"]]
) -> Placed:
    """The names among the nouns; one that is none of them stands where the everyday word does that is most like it."""
    placed = Placed(names)
    if not (outside := [row for row, name in enumerate(names) if name not in placed.found]):
        return placed
    words = everyday_words()[:500]
    nearest = (anchors[outside] @ encode(words).T).argmax(1).tolist()
    return Placed(names, {names[row]: words[near] for row, near in zip(outside, nearest, strict=True)})


def _farthest(words: Float[Tensor, "n d"], anchors: Float[Tensor, "K d"], count: int) -> Int[Tensor, " m"]:
    """The `count` words with the lowest .95 quantile of cosines to the names (NegLabel)."""
    cosines = (words @ anchors.T).sort(1).values
    place = 0.95 * (cosines.shape[1] - 1)
    rank = torch.lerp(cosines[:, int(place)], cosines[:, -int(-place // 1)], place % 1)
    return rank.argsort(stable=True)[:count]
