"""Which vectors belong together: average linkage on images that are described by their look and by words.

An image is its vector, less the mean image, beside the mean of the words that it resembles, less the mean word: a
cluster is then alike to the eye and in meaning. No number of clusters is asked for; clusters whose mean similarity is
below `least_cosine` are not joined. benchmarks/discover.py compares this with k-means and HDBSCAN.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True)
class ClusterNumbers:
    """Chosen on hidden classes of stored features (benchmarks/discover.py)."""

    least_cosine: float = 0.45  # mean cosine at which two clusters are one
    word_tau: float = 0.02  # temperature of the words that an image resembles, on centred cosines
    tile: int = 2048  # images whose words are read at once
    words: int = 4096  # words that describe images; more take time and change little


NUMBERS = ClusterNumbers()


def describe_images(
    z: Float[Tensor, "n d"], mean: Float[Tensor, " d"], words: Float[Tensor, "w d"]
) -> Float[Tensor, "n 2d"]:
    """Unit descriptions of images, look and words counting alike; the look alone where there are no words."""
    look = normalize(z - mean, dim=-1)
    if len(words) < 2:
        return look
    words = words[:: -(-len(words) // NUMBERS.words)]
    centred = normalize(words - words.mean(0), dim=-1)
    meaning = torch.cat(
        [(part @ centred.T / NUMBERS.word_tau).softmax(1) @ centred for part in look.split(NUMBERS.tile)]
    )
    return torch.cat([look, normalize(meaning, dim=-1)], 1) / 2**0.5


def average_linkage(x: Float[Tensor, "n d"], *, least_cosine: float = NUMBERS.least_cosine) -> Int[Tensor, " n"]:
    """The cluster of each unit row: average linkage; a mean cosine below `least_cosine` joins nothing.

    Chains of nearest neighbours find the same tree as joining the closest pair each time, in quadratic time. A cluster
    whose nearest neighbour is less than `least_cosine` alike is final, because joining others never brings one closer.
    """
    similarity = (x @ x.T).numpy()
    np.fill_diagonal(similarity, -np.inf)
    parent, size = np.arange(len(x)), np.ones(len(x))
    closed = np.zeros(len(x), dtype=similarity.dtype)  # -inf for clusters that are final or part of another
    unfinished = dict.fromkeys(range(len(x)))
    chain: list[int] = []
    while unfinished:
        chain = chain or [next(iter(unfinished))]
        last = chain[-1]
        row = similarity[last] + closed
        nearest = int(row.argmax())
        if row[nearest] < least_cosine:
            closed[last] = -np.inf
            del unfinished[chain.pop()]
        elif len(chain) > 1 and row[nearest] <= row[chain[-2]]:
            other = chain[-2]
            del chain[-2:], unfinished[other]
            closed[other] = -np.inf
            _join(similarity, size, last, other)
            parent[other] = last
        else:
            chain.append(nearest)
    while not np.array_equal(parent, parent[parent]):  # the cluster that each item ended in
        parent = parent[parent]
    return torch.from_numpy(parent)


def _join(similarity: np.ndarray, size: np.ndarray, into: int, other: int) -> None:
    """Make two clusters one: similarities to it are means over all pairs."""
    total = size[into] + size[other]
    row = (size[into] * similarity[into] + size[other] * similarity[other]) / total
    row[into] = -np.inf
    similarity[into] = row
    similarity[:, into] = row
    size[into] = total
