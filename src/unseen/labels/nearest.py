"""Which names and negatives of a label space lie close together."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.labels.space import LabelSpace
from unseen.vocabulary import canonical_spelling

NEAR = 0.95


@dataclass(frozen=True)
class Pair:
    """A known name and a negative, with the cosine of their vectors."""

    name: str
    negative: str
    cosine: float


def nearest_negatives(space: LabelSpace, count: int = 3, *, part: slice = slice(None)) -> dict[str, list[Pair]]:
    """For each known name, or each of a part of them, its closest negatives, closest first."""
    top = (space.id_anchors[part] @ space.ood_anchors.T).topk(min(count, len(space.negatives)))
    return {
        name: [Pair(name, space.negatives[i], round(c, 4)) for i, c in zip(places, cosines, strict=True)]
        for name, places, cosines in zip(space.names[part], top.indices.tolist(), top.values.tolist(), strict=True)
    }


def nearest_names(space: LabelSpace) -> dict[str, tuple[str, float]]:
    """For each known name the other known name closest to it; names that overlap cannot be told apart."""
    if len(space.names) < 2:
        return {}
    cosines = space.id_anchors @ space.id_anchors.T
    best = cosines.fill_diagonal_(-2.0).max(1)
    found = zip(space.names, best.indices.tolist(), best.values.tolist(), strict=True)
    return {name: (space.names[i], round(cosine, 4)) for name, i, cosine in found}


def similar_names(space: LabelSpace, above: float = NEAR) -> list[tuple[str, str, float]]:
    """Pairs of known names whose vectors are nearly the same, with their cosine, closest first."""
    cosines = (space.id_anchors @ space.id_anchors.T).triu(1)
    found = [(space.names[i], space.names[j], float(cosines[i, j])) for i, j in (cosines > above).nonzero().tolist()]
    return sorted(found, key=lambda pair: -pair[2])


def names_like(space: LabelSpace, name: str, vector: Float[Tensor, " d"]) -> tuple[str, ...]:
    """The known names that mean nearly the same as another: by vector, or as singular and plural of one word."""
    cosines = (space.id_anchors @ normalize(vector.to(space.id_anchors), dim=0)).tolist()
    found = zip(space.names, cosines, strict=True)
    return tuple(one for one, cosine in found if cosine > NEAR or _stem(one) == _stem(name))


def near_duplicates(space: LabelSpace) -> list[Pair]:
    """Names and negatives that mean nearly the same: by vector, or as singular and plural of one word."""
    close = [pair for pairs in nearest_negatives(space).values() for pair in pairs]
    return sorted((p for p in close if p.cosine > NEAR or _stem(p.name) == _stem(p.negative)), key=lambda p: -p.cosine)


def _stem(word: str) -> str:
    return canonical_spelling(word).removesuffix("s")
