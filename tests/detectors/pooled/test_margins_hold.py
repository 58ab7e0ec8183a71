"""A stream whose mix changes keeps its margins."""

from pathlib import Path

import pytest
import torch

from unseen import Session
from unseen_bench import suites

MEDIAN_MOVED, MOST_MOVED = 3.0, 5.0  # nats, median and 95th percentile over images, after 1,000 images of one kind


@pytest.mark.data
@pytest.mark.parametrize("is_known", [True, False], ids=["known only", "unknown only"])
@pytest.mark.parametrize("unknown", ["near", "textures10", "intel_scenes"])
def test_a_thousand_images_of_one_kind_move_the_margin_of_an_image_by_less_than_the_bound(
    features: Path, unknown: str, is_known: bool
) -> None:
    suite = suites.load("imagenet200", features)
    trial = suite.against(unknown).ordered("shuffled", 0)
    watched, rest = trial[torch.arange(200)], trial[torch.arange(200, len(trial.z))]
    session = Session(suite.labels)
    mixed = 200 if len(rest.z) > 1500 else 100
    session.observe(rest.z[:mixed])
    before = session.score(watched.z).margin
    one_kind = rest.z[mixed:][rest.is_id[mixed:] == is_known]
    while int(session.snapshot.tally.seen) < mixed + 1000:  # a set of fewer images comes again
        session.observe(one_kind[: mixed + 1000 - int(session.snapshot.tally.seen)])
    moved = (session.score(watched.z).margin - before).abs()
    median, most = float(moved.median()), float(moved.quantile(0.95))
    print(f"{unknown}, {is_known=}: median {median:.2f}, 95th percentile {most:.2f} nats")
    assert median < MEDIAN_MOVED
    assert most < MOST_MOVED
