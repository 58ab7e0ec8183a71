"""Average linkage by chains of nearest neighbours gives the clusters of the textbook algorithm."""

from __future__ import annotations

import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import normalize

from unseen.discover.clustering import average_linkage


def blobs(count: int, centres: int, noise: float, *, seed: int = 0, dim: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    middle = normalize(torch.randn(centres, dim, generator=generator), dim=1)
    drawn = middle[torch.randint(centres, (count,), generator=generator)]
    return normalize(drawn + noise * torch.randn(count, dim, generator=generator), dim=1)


@pytest.mark.parametrize("cut", [0.2, 0.45, 0.8])
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_the_clusters_are_those_of_scikit_learn(cut, noise):
    x = blobs(200, 12, noise)
    other = AgglomerativeClustering(
        n_clusters=None, distance_threshold=1 - cut, linkage="average", metric="cosine"
    ).fit_predict(x.numpy())
    assert adjusted_rand_score(average_linkage(x, least_cosine=cut).numpy(), other) == pytest.approx(1)


def test_one_image_none_and_copies():
    assert average_linkage(blobs(1, 1, 0.1)).tolist() == [0]
    assert average_linkage(torch.zeros(0, 4)).tolist() == []
    assert len(average_linkage(blobs(1, 1, 0.1).repeat(5, 1)).unique()) == 1
