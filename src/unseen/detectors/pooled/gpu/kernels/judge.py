"""Triton kernel that judges samples and stores what they will teach.

Streams are learned in lockstep: `size` samples of each of S streams, of which each has `capacity` rows in a block. What
a formula means is written where torch computes it: `evidence`, `names`, `likelihood`, `detector`.
"""

from unseen.detectors.pooled import evidence, likelihood, names, sides
from unseen.gpu.triton_import import tl, triton

BORROWED = tl.constexpr(float(evidence.BORROWED))
LEAST_VARIANCE = tl.constexpr(evidence.TINY)
NAME_SCALE = tl.constexpr(names.NAME_SCALE)
TEXT_SHARE = tl.constexpr(names.TEXT_SHARE)
START_SAMPLES = tl.constexpr(names.START_SAMPLES)
CLAIMED_BY_LOOK = tl.constexpr(names.CLAIMED_BY_LOOK)
NAMING_SAMPLES = tl.constexpr(names.NAMING_SAMPLES)
BOUNDARY = tl.constexpr(sides.BOUNDARY)
SLOPE = tl.constexpr(sides.SLOPE)
NEAR_SHARE = tl.constexpr(likelihood.NEAR_SHARE)
LARGEST_RATIO = tl.constexpr(likelihood.LARGEST_RATIO)


@triton.jit
def logsumexp(x):
    """The log of the mass of logits."""
    peak = tl.max(x, axis=0)
    return peak + tl.log(tl.sum(tl.exp(x - peak), axis=0))


@triton.jit
def evidence_of(statistics, settings, known):
    """The evidence of a sample in nats, and its clarity."""
    known_mean, known_variance = tl.load(statistics), tl.load(statistics + 1)
    peak, known_energy = tl.load(statistics + 2), tl.load(statistics + 3)
    mean, variance, energy = tl.load(statistics + 4), tl.load(statistics + 5), tl.load(statistics + 7)
    kind = peak.dtype
    contrast = peak - known_mean
    odds = known_energy - energy - tl.load(settings + 4).to(kind) * (known_mean - mean)
    spread = (known * known_variance + variance * BORROWED) / (known + BORROWED)
    surprise = contrast * contrast / tl.maximum(spread, LEAST_VARIANCE) / 2
    value = tl.load(settings + 7).to(kind) * odds
    value += tl.load(settings + 8).to(kind) * contrast
    value += tl.load(settings + 9).to(kind) * surprise
    z_score = (peak - mean) / tl.sqrt(tl.maximum(variance, LEAST_VARIANCE))
    clarity = z_score / tl.load(settings + 5).to(kind) - tl.load(settings + 6).to(kind)
    return value.to(tl.float64), clarity


@triton.jit
def looks(z, logit, anchors, total, claimed, middle, tau):
    """What image space adds to the logits of names, at their start and now."""
    start = middle[None, :] + anchors * TEXT_SHARE
    mean = (total + start * START_SAMPLES) / (claimed + START_SAMPLES)[:, None]
    from_start = tl.sum(z * middle, axis=0) + tau * logit * TEXT_SHARE
    from_mean = tl.sum(mean * z[None, :], axis=1)
    at_start = (from_start - tl.sum(start * start, axis=1) / 2) * NAME_SCALE
    return at_start, (from_mean - tl.sum(mean * mean, axis=1) / 2) * NAME_SCALE


@triton.jit(do_not_specialize=["size", "capacity", "known_top", "negative_top"])
def judge(
    start, z_in, known_name, known_logit, negative_name, negative_logit, statistics, base, is_new, settings,
    known_anchors, negative_anchors, known_total, known_images, negative_total, negative_images,
    known_origin, negative_origin, slope, centre, level, middle, rate, popularity, votes,
    score_out, label_out, route_out, base_out, clarity_out, rows, weights, weighted, z_out, gains,
    capacity, size, known, negatives, dim, known_top, negative_top,
    DIM: tl.constexpr, KNOWN_TOP: tl.constexpr, NEGATIVE_TOP: tl.constexpr,
):  # fmt: skip
    """Judge one sample of one stream: its reading, and what it will teach as `state.packed` has it.

    `settings` are as `KernelFormulas.settings` returns them.
    """
    stream = tl.program_id(1).to(tl.int64)
    row = stream * capacity + tl.load(start + stream) + tl.program_id(0)
    sample = stream * size + tl.program_id(0)
    columns = tl.arange(0, DIM)
    inside = columns < dim
    z = tl.load(z_in + row * dim + columns, mask=inside, other=0.0)
    tau = tl.load(settings).to(z.dtype)

    # all rows are loaded before anything is computed of them: the loads then wait together
    k, n = tl.arange(0, KNOWN_TOP), tl.arange(0, NEGATIVE_TOP)
    is_known, is_negative = k < known_top, n < negative_top
    k_name = tl.load(known_name + row * known_top + k, mask=is_known, other=0)
    n_name = tl.load(negative_name + row * negative_top + n, mask=is_negative, other=0)
    k_logit = tl.load(known_logit + row * known_top + k, mask=is_known, other=-float("inf"))
    n_logit = tl.load(negative_logit + row * negative_top + n, mask=is_negative, other=-float("inf"))
    k_places, k_mask = k_name[:, None] * dim + columns[None, :], is_known[:, None] & inside[None, :]
    n_places, n_mask = n_name[:, None] * dim + columns[None, :], is_negative[:, None] & inside[None, :]
    k_anchors = tl.load(known_anchors + k_places, mask=k_mask, other=0.0)
    n_anchors = tl.load(negative_anchors + n_places, mask=n_mask, other=0.0)
    k_total = tl.load(known_total + stream * known * dim + k_places, mask=k_mask, other=0.0)
    n_total = tl.load(negative_total + stream * negatives * dim + n_places, mask=n_mask, other=0.0)
    k_images = tl.load(known_images + stream * known + k_name, mask=is_known, other=0.0)
    n_images = tl.load(negative_images + stream * negatives + n_name, mask=is_negative, other=0.0)
    k_middle = tl.load(known_origin + stream * dim + columns, mask=inside, other=0.0)
    n_middle = tl.load(negative_origin + stream * dim + columns, mask=inside, other=0.0)
    k_start, k_learned = looks(z, tl.where(is_known, k_logit, 0.0), k_anchors, k_total, k_images, k_middle, tau)
    _, n_learned = looks(z, tl.where(is_negative, n_logit, 0.0), n_anchors, n_total, n_images, n_middle, tau)

    raised = logsumexp(k_logit + k_learned) - logsumexp(k_logit)
    raised -= logsumexp(n_logit + n_learned) - logsumexp(n_logit)
    nearest = tl.load(known_name + row * known_top)
    voted = tl.load(settings + 1) * tl.load(popularity + stream * known + nearest)
    own, clarity = evidence_of(statistics + 8 * row, settings, known)
    value = (own + raised.to(tl.float64) - voted) / tl.load(settings + 3)
    slopes = tl.load(slope + stream * dim + columns, mask=inside, other=0.0)
    centres = tl.load(centre + stream * dim + columns, mask=inside, other=0.0)
    predicted = tl.sum((z.to(tl.float64) - centres) * slopes, axis=0) + tl.load(level + stream)
    ratio = tl.load(rate + stream) * (predicted - tl.load(middle + stream))
    ratio = tl.minimum(tl.maximum(ratio, -LARGEST_RATIO), LARGEST_RATIO)
    score = value - tl.log(tl.exp(-ratio) * (1 - NEAR_SHARE) + NEAR_SHARE)
    zero = tl.load(base + row)
    margin = value - zero
    known_weight = 1 / (1 + tl.exp((margin - BOUNDARY) * (-SLOPE)))
    unknown_weight = 1 - known_weight

    held_back = tl.load(settings + 2) * tl.load(votes + stream * known + k_name, mask=is_known, other=0.0)
    naming = k_logit + k_start + k_images / (k_images + NAMING_SAMPLES) * (k_learned - k_start)
    best = tl.argmax(naming - held_back.to(z.dtype), axis=0)
    tl.store(score_out + row, score.to(z.dtype))
    tl.store(label_out + row, tl.sum(tl.where(k == best, k_name, 0), axis=0))
    tl.store(route_out + row, tl.where(known_weight >= unknown_weight, 1, -1).to(tl.int8))
    tl.store(base_out + row, zero.to(z.dtype))
    tl.store(clarity_out + row, clarity)

    k_claim, n_claim = k_logit + k_learned * CLAIMED_BY_LOOK, n_logit + n_learned * CLAIMED_BY_LOOK
    peak = tl.maximum(tl.max(k_claim, axis=0), tl.max(n_claim, axis=0))
    k_mass, n_mass = tl.exp(k_claim - peak), tl.exp(n_claim - peak)
    whole = tl.sum(k_mass, axis=0) + tl.sum(n_mass, axis=0)
    packed = rows + sample * (dim + 2 + 2 * known_top + 2 * negative_top)
    tl.store(packed + columns, z.to(tl.float64), mask=inside)
    tl.store(packed + dim, margin)
    tl.store(packed + dim + 1, predicted)
    packed += dim + 2
    tl.store(packed + k, k_name.to(tl.float64), mask=is_known)
    k_share = known_weight.to(z.dtype) * (k_mass / whole)
    tl.store(packed + known_top + k, k_share.to(tl.float64), mask=is_known)
    packed += 2 * known_top
    tl.store(packed + n, n_name.to(tl.float64), mask=is_negative)
    n_share = unknown_weight.to(z.dtype) * (n_mass / whole)
    tl.store(packed + negative_top + n, n_share.to(tl.float64), mask=is_negative)

    taught = tl.load(is_new + row).to(tl.float64)
    w0, w1 = taught * unknown_weight, taught * known_weight
    tl.store(weights + sample * 2, w0)
    tl.store(weights + sample * 2 + 1, w1)
    weighted += sample * 2 * dim
    tl.store(weighted + columns, w0.to(z.dtype) * z, mask=inside)
    tl.store(weighted + dim + columns, w1.to(z.dtype) * z, mask=inside)
    tl.store(z_out + sample * dim + columns, z, mask=inside)
    add_gains(gains + 16 * stream, w0, w1, taught, margin, predicted)


@triton.jit
def add_gains(gains, w0, w1, taught, margin, predicted):
    """Add what one sample adds to the sums that are numbers."""
    column, square = tl.arange(0, 16), predicted * predicted
    value = tl.where(column == 0, w0, 0.0) + tl.where(column == 1, w1, 0.0)
    value += tl.where(column == 2, w0 * margin, 0.0) + tl.where(column == 3, w1 * margin, 0.0)
    value += tl.where(column == 4, w0 * predicted, 0.0) + tl.where(column == 5, w1 * predicted, 0.0)
    value += tl.where(column == 6, w0 * square, 0.0) + tl.where(column == 7, w1 * square, 0.0)
    value += tl.where(column == 8, taught, 0.0) + tl.where(column == 9, taught * predicted, 0.0)
    value += tl.where(column == 10, taught * square, 0.0)
    value += tl.where(column == 11, taught * square * predicted, 0.0)
    value += tl.where(column == 12, taught * square * square, 0.0)
    tl.atomic_add(gains + column, value, mask=value != 0)
