"""Triton kernel that corrects distributions by margins: `correction` has the formulas, here for a row per program."""

from unseen.gpu.triton_import import tl, triton
from unseen.threshold import correction
from unseen.threshold.nodes import NODES

OUTLIER = tl.constexpr(correction.OUTLIER / NODES)
SHARE_ROUNDS, ROUNDS = tl.constexpr(correction.SHARE_ROUNDS), tl.constexpr(correction.ROUNDS)
EXPECTED_IMAGES, SHARE_IMAGES = tl.constexpr(correction.EXPECTED_IMAGES), tl.constexpr(correction.SHARE_IMAGES)
CHANGED = tl.constexpr(correction.CHANGED)
NEW_IMAGES, NEW_ROUNDS = tl.constexpr(correction.NEW_IMAGES), tl.constexpr(correction.NEW_ROUNDS)


@triton.jit
def smaller(a, b):
    """Return the smaller of two numbers."""
    return tl.minimum(a, b)


@triton.jit
def larger(a, b):
    """Return the larger of two numbers."""
    return tl.maximum(a, b)


@triton.jit
def likelihood_ratio(known, unknown, node, inside):
    """Return how much more likely a known image is at each node than an unknown one."""
    plain = known / (unknown + OUTLIER)
    peak = tl.argmax(known, axis=0)
    falling = tl.where((node > peak) | (inside == 0), float("inf"), plain)
    falling = tl.associative_scan(falling, 0, smaller, reverse=True)
    rising = tl.associative_scan(tl.where(node < peak, -float("inf"), plain), 0, larger)
    return tl.where(inside, tl.where(node < peak, falling, rising), 1.0)


@triton.jit
def probability_of(share, ratio):
    """Return the probability that an image at each node is known."""
    odds = share * ratio
    return odds / (odds + (1 - share))


@triton.jit
def share_in(counted, probability):
    """Return the share of known images among margins, given the probability at each node."""
    return (tl.sum(counted * probability, axis=0) + SHARE_IMAGES) / (tl.sum(counted, axis=0) + 2 * SHARE_IMAGES)


@triton.jit
def share_of_known(counted, ratio):
    """Return the share of known images among margins, given where both kinds lie."""
    share = share_in(counted, probability_of(0.5, ratio))
    for _ in range(SHARE_ROUNDS - 1):
        share = share_in(counted, probability_of(share, ratio))
    return share


@triton.jit
def log_likelihood(counted, share, known, unknown):
    """Return the mean log probability of margins under a mixture."""
    mixed = share * known + (1 - share) * unknown + OUTLIER
    return tl.sum(counted * tl.log(mixed), axis=0) / tl.maximum(tl.sum(counted, axis=0), 1.0)


@triton.jit
def best_log_likelihood(counted):
    """Return the mean log probability of margins under their own distribution."""
    share = counted / tl.maximum(tl.sum(counted, axis=0), 1.0)
    return tl.sum(tl.where(share > 0, share * tl.log(tl.where(share > 0, share, 1.0)), 0.0), axis=0)


@triton.jit
def corrected(known, unknown, counted, node, inside):
    """Return what is expected of both sides, corrected by margins."""
    expected_known, expected_unknown = known, unknown
    ratio = likelihood_ratio(known, unknown, node, inside)
    share = share_of_known(counted, ratio)
    for _ in range(ROUNDS):
        probability = probability_of(share, ratio)
        share = share_in(counted, probability)
        known = expected_known * EXPECTED_IMAGES + counted * probability
        unknown = expected_unknown * EXPECTED_IMAGES + counted * (1 - probability)
        known, unknown = known / tl.sum(known, axis=0), unknown / tl.sum(unknown, axis=0)
        ratio = likelihood_ratio(known, unknown, node, inside)
    return known, unknown


@triton.jit
def fitted_unknown(counted, known, typical, node, inside):
    """Return the distribution of unknown images among margins, given that of known ones."""
    unknown = typical
    ratio = likelihood_ratio(known, unknown, node, inside)
    share = share_of_known(counted, ratio)
    for _ in range(NEW_ROUNDS):
        probability = probability_of(share, ratio)
        share = share_in(counted, probability)
        unknown = typical * NEW_IMAGES + counted * (1 - probability)
        unknown = unknown / tl.sum(unknown, axis=0)
        ratio = likelihood_ratio(known, unknown, node, inside)
    return unknown


@triton.jit
def correct(
    known_in, unknown_in, counted_in, recent_in, typical_in, known_out, unknown_out, probability_out,
    NODES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store both corrected distributions of a row, and the probability at each node that an image is known now."""
    node, row = tl.arange(0, WIDTH), tl.program_id(0).to(tl.int64) * NODES
    inside = node < NODES
    known, unknown = (
        tl.load(known_in + row + node, mask=inside, other=0.0),
        tl.load(unknown_in + row + node, mask=inside, other=0.0),
    )
    counted, recent = (
        tl.load(counted_in + row + node, mask=inside, other=0.0),
        tl.load(recent_in + row + node, mask=inside, other=0.0),
    )
    known, unknown = corrected(known, unknown, counted, node, inside)
    tl.store(known_out + row + node, known, mask=inside)
    tl.store(unknown_out + row + node, unknown, mask=inside)

    ratio = likelihood_ratio(known, unknown, node, inside)
    share = share_of_known(recent, ratio)
    probability, fit = probability_of(share, ratio), log_likelihood(recent, share, known, unknown)
    if best_log_likelihood(recent) - fit > CHANGED / 2:
        typical = tl.load(typical_in + node, mask=inside, other=0.0)
        unknown = fitted_unknown(recent, known, typical, node, inside)
        ratio = likelihood_ratio(known, unknown, node, inside)
        share = share_of_known(recent, ratio)
        weight = (log_likelihood(recent, share, known, unknown) - fit) / CHANGED - 0.5
        weight = tl.minimum(tl.maximum(weight, 0.0), 1.0)
        probability += weight * (probability_of(share, ratio) - probability)
    tl.store(probability_out + row + node, probability, mask=inside)
