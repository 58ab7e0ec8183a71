"""Every number of the detector, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PooledConstants:
    """The numbers that were not derived from the label space or the stream.

    Unless a line says otherwise, they were chosen by AUROC and balanced accuracy on streams of stored CLIP ViT-B/16
    features (imagenet200, its low-resolution twin, Tiny-ImageNet, random label spaces); `benchmarks/ablation.py` prints
    what a part is worth, and most may change by half without a difference of a tenth of a point.
    """

    # Updates
    interval: int = 256  # most samples between two updates: what a GPU or a core needs to be busy
    first_direction: int = 32  # samples before which no direction in image space is fitted

    # Examples
    example_weight: float = 2.0  # images of the stream that an example is worth: its name is sure

    # Names in image space
    top: int = 16  # names of a side that may matter for an image: at tau = 0.01 the others have no mass
    name_scale: float = 40.0  # nats per unit of cosine in image space; text has 1 / tau = 100
    text_share: float = 0.25  # how far apart names lie in image space, against their distance in text space
    name_start: float = 1.0  # images that the start of a name is worth
    claimed_by_look: float = 0.5  # share of what image space adds that counts when names claim images
    naming_samples: float = 32.0  # images after which the look of a name counts half when an image is named
    least_share: float = 1e-3  # an image that is claimed less than this teaches a name nothing worth the time
    sure: float = 4.0  # the margin from which an image is surely known: a name that is often right is no magnet
    few_votes: float = 5.0  # added to all votes before their logs are compared: they differ by that much by accident

    # Sides and pool
    boundary: float = 1.0  # the margin that is as likely known as unknown
    ridge: float = 2.0  # prior precision of the direction, in samples
    side_start: float = 8.0  # images that the start of a mean is worth
    start_margins: tuple[float, float] = (0.0, 5.0)  # mean margin of unknown and of known images before there is any
    near_share: float = 0.6  # share of unknown images that look like known ones
    half_pool: float = 16.0  # effective images after which the pool counts half; also the start of a moment
    largest_ratio: float = 50.0  # nats; beyond, the exponential says no more

    # Repeats
    slots: int = 1 << 16  # images that are remembered, a later one in the place of an earlier with the same slot
    step: float = 1e-3  # features are rounded to it: the same image in another batch differs by less, others by more
    digest_features: int = 64  # numbers of an image that are looked at

    # Arithmetic
    tiny_margins: float = 1e-4  # the same of margins, and of the weight of a side


POOLED = PooledConstants()
