"""Triton kernels of the recommended detector: its formulas for a GPU, fused so that an update is some twenty launches.

Streams are learned in lockstep: `size` samples of each of S streams, of which each has `capacity` rows in a block. What
a formula means is said where torch computes it: `evidence`, `names`, `sides`, `likelihood`, `state`, `detector`.
"""

from unseen.detectors.pooled import evidence, likelihood, names, sides, state
from unseen.detectors.triton_import import tl, triton

BORROWED = tl.constexpr(float(evidence.BORROWED))
LEAST_VARIANCE = tl.constexpr(evidence.TINY)
NAME_SCALE = tl.constexpr(names.NAME_SCALE)
TEXT_SHARE = tl.constexpr(names.TEXT_SHARE)
START_SAMPLES = tl.constexpr(names.START_SAMPLES)
CLAIMED_BY_LOOK = tl.constexpr(names.CLAIMED_BY_LOOK)
NAMING_SAMPLES = tl.constexpr(names.NAMING_SAMPLES)
LEAST_SHARE = tl.constexpr(names.LEAST_SHARE)
BOUNDARY = tl.constexpr(sides.BOUNDARY)
SLOPE = tl.constexpr(sides.SLOPE)
RIDGE = tl.constexpr(sides.RIDGE)
SIDE_SAMPLES = tl.constexpr(sides.START_SAMPLES)
UNKNOWN_START = tl.constexpr(sides.START_MARGIN[0])
KNOWN_START = tl.constexpr(sides.START_MARGIN[1])
NEAR_SHARE = tl.constexpr(likelihood.NEAR_SHARE)
HALF_SAMPLES = tl.constexpr(likelihood.HALF_SAMPLES)
LARGEST_RATIO = tl.constexpr(likelihood.LARGEST_RATIO)
NORMAL_BIMODALITY = tl.constexpr(likelihood.NORMAL_BIMODALITY)
TINY = tl.constexpr(likelihood.TINY)
FEW_VOTES = tl.constexpr(state.FEW_VOTES)
FIRST_DIRECTION = tl.constexpr(state.FIRST_DIRECTION)
NO_WEIGHT = tl.constexpr(1e-9)  # floor of the weight of a side


@triton.jit
def logsumexp(x):
    """Return the log of the mass of logits."""
    peak = tl.max(x, axis=0)
    return peak + tl.log(tl.sum(tl.exp(x - peak), axis=0))


@triton.jit
def nearest_names(
    logits, row, count, name_out, logit_out, statistics, TOP: tl.constexpr, GROUPS: tl.constexpr, MEMBERS: tl.constexpr
):
    """Store mean, variance, largest and logsumexp of a row of logits, and its `TOP` largest, the largest first.

    A group is every `GROUPS`-th column. The largest of each group are held; where one is taken, the next of its group
    takes its place. Of equals the first comes first.
    """
    group, member = tl.arange(0, GROUPS), tl.arange(0, MEMBERS)
    logits += row * count
    largest = tl.load(logits + group, mask=group < count, other=-float("inf"))
    column, total = group, tl.where(group < count, largest, 0.0)
    for first in range(GROUPS, count, GROUPS):
        x = tl.load(logits + first + group, mask=first + group < count, other=-float("inf"))
        total += tl.where(first + group < count, x, 0.0)
        column = tl.where(x > largest, first + group, column)
        largest = tl.maximum(x, largest)
    mean, peak = tl.sum(total, axis=0) / count, tl.max(largest, axis=0)
    squares, masses = tl.zeros_like(total), tl.zeros_like(total)
    for first in range(0, count, GROUPS):
        inside = first + group < count
        x = tl.load(logits + first + group, mask=inside, other=-float("inf"))
        masses += tl.exp(x - peak)
        off = tl.where(inside, x - mean, 0.0)
        squares += off * off
    tl.store(statistics, mean)
    tl.store(statistics + 1, tl.sum(squares, axis=0) / count)
    tl.store(statistics + 2, peak)
    tl.store(statistics + 3, peak + tl.log(tl.sum(masses, axis=0)))
    for i in range(TOP):
        value, chosen = tl.max(largest, axis=0, return_indices=True)
        place = tl.sum(tl.where(group == chosen, column, 0), axis=0)
        tl.store(name_out + row * TOP + i, place.to(tl.int64))
        tl.store(logit_out + row * TOP + i, value)
        columns = chosen + GROUPS * member
        x = tl.load(logits + columns, mask=columns < count, other=-float("inf"))
        x = tl.where((x < value) | ((x == value) & (columns > place)), x, -float("inf"))
        value, following = tl.max(x, axis=0, return_indices=True)
        largest = tl.where(group == chosen, value, largest)
        column = tl.where(group == chosen, chosen + GROUPS * following, column)


@triton.jit
def frozen(
    known_logits, negative_logits, known_name, known_logit, negative_name, negative_logit, statistics,
    known, negatives, KNOWN_TOP: tl.constexpr, NEGATIVE_TOP: tl.constexpr, KNOWN_GROUPS: tl.constexpr,
    NEGATIVE_GROUPS: tl.constexpr, KNOWN_MEMBERS: tl.constexpr, NEGATIVE_MEMBERS: tl.constexpr,
):  # fmt: skip
    """Store what the frozen text says of a sample, a program for each side: `nearest_names`."""
    row = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 0:
        nearest_names(
            known_logits, row, known, known_name, known_logit, statistics + 8 * row,
            KNOWN_TOP, KNOWN_GROUPS, KNOWN_MEMBERS,
        )  # fmt: skip
    else:
        nearest_names(
            negative_logits, row, negatives, negative_name, negative_logit, statistics + 8 * row + 4,
            NEGATIVE_TOP, NEGATIVE_GROUPS, NEGATIVE_MEMBERS,
        )  # fmt: skip


@triton.jit
def evidence_of(statistics, settings, known):
    """Return the evidence of a sample in nats, and its clarity."""
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
    """Return what image space adds to the logits of names, at their start and now."""
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

    `settings` are as `lockstep.settings_of` returns them.
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


@triton.jit
def claim_image(z_row, name, share, total, images, dim, DIM: tl.constexpr):
    """Add an image to the sums of a name that claims it."""
    columns = tl.arange(0, DIM)
    z = tl.load(z_row + columns, mask=columns < dim, other=0.0)
    share = share.to(z.dtype)
    tl.atomic_add(images + name, share)
    tl.atomic_add(total + name * dim + columns, share * z, mask=columns < dim)


@triton.jit
def learn_numbers(
    start, seen, gains, weight, margin_sum, predictions, powers, level, effective_out, middle, rate, size, stream,
    DIRECTION: tl.constexpr,
):  # fmt: skip
    """Add what samples gained to all sums that are numbers, and fit the numbers that follow from them."""
    before = tl.load(seen + stream)
    tl.store(seen + stream, before + size)
    tl.store(start + stream, tl.load(start + stream) + size)
    gains += 16 * stream
    w0, w1 = tl.load(gains), tl.load(gains + 1)
    weight0, weight1 = tl.load(weight + 2 * stream) + w0, tl.load(weight + 2 * stream + 1) + w1
    margin0 = tl.load(margin_sum + 2 * stream) + tl.load(gains + 2)
    margin1 = tl.load(margin_sum + 2 * stream + 1) + tl.load(gains + 3)
    tl.store(weight + 2 * stream, weight0)
    tl.store(weight + 2 * stream + 1, weight1)
    tl.store(margin_sum + 2 * stream, margin0)
    tl.store(margin_sum + 2 * stream + 1, margin1)
    if DIRECTION:
        count0, count1 = tl.maximum(weight0, NO_WEIGHT), tl.maximum(weight1, NO_WEIGHT)
        effective = 4 / (1 / count0 + 1 / count1)
        level0 = (margin0 + SIDE_SAMPLES * UNKNOWN_START) / (count0 + SIDE_SAMPLES)
        level1 = (margin1 + SIDE_SAMPLES * KNOWN_START) / (count1 + SIDE_SAMPLES)
        tl.store(level + stream, (level0 + level1) / 2)
        tl.store(effective_out + stream, effective)

        taught = tl.load(gains + 8)
        counted = tl.where(before >= FIRST_DIRECTION, 1.0, 0.0)
        factor = counted * (before.to(tl.float64) + taught)
        p = predictions + 6 * stream
        a0, b0 = tl.load(p) + factor * w0, tl.load(p + 1) + factor * tl.load(gains + 4)
        a1, b1 = tl.load(p + 3) + factor * w1, tl.load(p + 4) + factor * tl.load(gains + 5)
        c0, c1 = tl.load(p + 2) + factor * tl.load(gains + 6), tl.load(p + 5) + factor * tl.load(gains + 7)
        tl.store(p, a0)
        tl.store(p + 1, b0)
        tl.store(p + 2, c0)
        tl.store(p + 3, a1)
        tl.store(p + 4, b1)
        tl.store(p + 5, c1)
        q = powers + 5 * stream
        number, first_power = tl.load(q) + counted * taught, tl.load(q + 1) + counted * tl.load(gains + 9)
        second_power = tl.load(q + 2) + counted * tl.load(gains + 10)
        third_power = tl.load(q + 3) + counted * tl.load(gains + 11)
        fourth_power = tl.load(q + 4) + counted * tl.load(gains + 12)
        tl.store(q, number)
        tl.store(q + 1, first_power)
        tl.store(q + 2, second_power)
        tl.store(q + 3, third_power)
        tl.store(q + 4, fourth_power)

        # likelihood.fit_likelihood
        latest = (before + size).to(tl.float64)
        a0, b0, c0, a1, b1, c1 = a0 / latest, b0 / latest, c0 / latest, a1 / latest, b1 / latest, c1 / latest
        whole = tl.maximum(a0 + a1, TINY)
        overall = (b0 + b1) / whole
        spread = tl.maximum((c0 + c1) / whole - overall * overall, TINY)
        mean0 = (b0 + overall * HALF_SAMPLES) / (a0 + HALF_SAMPLES)
        mean1 = (b1 + overall * HALF_SAMPLES) / (a1 + HALF_SAMPLES)
        square0 = (c0 + (spread + overall * overall) * HALF_SAMPLES) / (a0 + HALF_SAMPLES)
        square1 = (c1 + (spread + overall * overall) * HALF_SAMPLES) / (a1 + HALF_SAMPLES)
        variance = (tl.maximum(square0 - mean0 * mean0, TINY) + tl.maximum(square1 - mean1 * mean1, TINY)) / 2
        earned = effective / (effective + HALF_SAMPLES)
        earned *= tl.sqrt(bimodality(number, first_power, second_power, third_power, fourth_power))
        tl.store(middle + stream, (mean0 + mean1) / 2)
        tl.store(rate + stream, earned * (mean1 - mean0) / variance)
    tl.debug_barrier()  # all of the gains have been read
    tl.store(gains + tl.arange(0, 16), tl.zeros((16,), dtype=tl.float64))


@triton.jit
def bimodality(number, first, second, third, fourth):
    """Return Sarle's coefficient as `likelihood.bimodality` does, from the sums of five powers."""
    count = tl.maximum(number, 1.0)
    mean, second, third, fourth = first / count, second / count, third / count, fourth / count
    variance = tl.maximum(second - mean * mean, 1e-6 * second + TINY)
    skew = (third - 3 * mean * second + 2 * mean * mean * mean) / (variance * tl.sqrt(variance))
    kurtosis = fourth - 4 * mean * third + 6 * mean * mean * second - 3 * mean * mean * mean * mean
    kurtosis = tl.maximum(kurtosis / (variance * variance), 1.0)
    excess = ((skew * skew + 1) / kurtosis - NORMAL_BIMODALITY) / (1 - NORMAL_BIMODALITY)
    return tl.minimum(tl.maximum(tl.where(number > 4, excess, 0.0), 0.0), 1.0)


@triton.jit(do_not_specialize=["size", "known_top", "negative_top"])
def learn_names(
    start, seen, rows, weights, z_rows, gains,
    known_total, known_images, negative_total, negative_images, votes,
    weight, margin_sum, predictions, powers, level, effective, middle, rate,
    size, known, negatives, dim, known_top, negative_top, DIM: tl.constexpr, DIRECTION: tl.constexpr,
):  # fmt: skip
    """Add samples to the sums of the names that claim them: a program per sample and name, and one for all numbers."""
    program, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tops = known_top + negative_top
    width = dim + 2 + 2 * tops
    if program == size * tops:
        learn_numbers(
            start, seen, gains, weight, margin_sum, predictions, powers, level, effective, middle, rate,
            size, stream, DIRECTION,
        )  # fmt: skip
    else:
        sample, place = stream * size + program // tops, program % tops
        packed = rows + sample * width + dim + 2
        taught = tl.load(weights + 2 * sample) + tl.load(weights + 2 * sample + 1)
        if place < known_top:
            name, share = tl.load(packed + place).to(tl.int64), tl.load(packed + known_top + place)
            if place == 0:
                tl.atomic_add(votes + stream * known + name, tl.load(weights + 2 * sample + 1))
            if (taught > 0) & (share >= LEAST_SHARE):
                total, images = known_total + stream * known * dim, known_images + stream * known
                claim_image(z_rows + sample * dim, name, share, total, images, dim, DIM)
        else:
            packed += known_top + place
            name, share = tl.load(packed).to(tl.int64), tl.load(packed + negative_top)
            if (taught > 0) & (share >= LEAST_SHARE):
                total, images = negative_total + stream * negatives * dim, negative_images + stream * negatives
                claim_image(z_rows + sample * dim, name, share, total, images, dim, DIM)


@triton.jit(do_not_specialize=["size", "column_programs"])
def learn_columns(
    rows, weights, weight, margin_sum, image, cross, text_mean, known_origin, negative_origin, centre_out, pull_out,
    votes, popularity, log_votes, size, known, dim, width, column_programs,
    SAMPLES: tl.constexpr, COLUMNS: tl.constexpr, NAMES: tl.constexpr, DIRECTION: tl.constexpr,
):  # fmt: skip
    """Add samples to the sums of images by side, and fit what follows from them; other programs fit the votes."""
    program, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if program < column_programs:
        columns = program * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < dim
        side0, side1 = stream * 2 * dim + columns, stream * 2 * dim + dim + columns
        image0, image1 = tl.load(image + side0, mask=inside), tl.load(image + side1, mask=inside)
        cross0, cross1 = tl.load(cross + side0, mask=inside), tl.load(cross + side1, mask=inside)
        for first in range(0, size, SAMPLES):
            number = first + tl.arange(0, SAMPLES)
            sample, is_sample = stream * size + number, number < size
            mask = is_sample[:, None] & inside[None, :]
            z = tl.load(rows + sample[:, None] * width + columns[None, :], mask=mask, other=0.0)
            margin = tl.load(rows + sample * width + dim, mask=is_sample, other=0.0)
            w0 = tl.load(weights + 2 * sample, mask=is_sample, other=0.0)
            w1 = tl.load(weights + 2 * sample + 1, mask=is_sample, other=0.0)
            image0 += tl.sum(w0[:, None] * z, axis=0)
            image1 += tl.sum(w1[:, None] * z, axis=0)
            cross0 += tl.sum((w0 * margin)[:, None] * z, axis=0)
            cross1 += tl.sum((w1 * margin)[:, None] * z, axis=0)
        tl.store(image + side0, image0, mask=inside)
        tl.store(image + side1, image1, mask=inside)
        tl.store(cross + side0, cross0, mask=inside)
        tl.store(cross + side1, cross1, mask=inside)
        weight0, weight1 = tl.load(weight + 2 * stream), tl.load(weight + 2 * stream + 1)
        overall = (image0 + image1) / tl.maximum(weight0 + weight1, 1.0)
        text = tl.load(text_mean + columns, mask=inside)
        mean0 = (image0 + overall * SIDE_SAMPLES) / (weight0 + SIDE_SAMPLES)
        mean1 = (image1 + overall * SIDE_SAMPLES) / (weight1 + SIDE_SAMPLES)
        tl.store(negative_origin + stream * dim + columns, mean0.to(text.dtype) - text * TEXT_SHARE, mask=inside)
        tl.store(known_origin + stream * dim + columns, mean1.to(text.dtype) - text * TEXT_SHARE, mask=inside)
        if DIRECTION:
            count0, count1 = tl.maximum(weight0, NO_WEIGHT), tl.maximum(weight1, NO_WEIGHT)
            centre = (image0 / count0 + image1 / count1) / 2
            margin0, margin1 = tl.load(margin_sum + 2 * stream), tl.load(margin_sum + 2 * stream + 1)
            margins = (margin0 / count0 + margin1 / count1) / 2
            tl.store(centre_out + stream * dim + columns, centre, mask=inside)
            pull = (cross0 / count0 + cross1 / count1) / 2 - centre * margins
            tl.store(pull_out + stream * dim + columns, pull, mask=inside)
    else:
        total = tl.zeros((NAMES,), dtype=tl.float64)
        for first in range(0, known, NAMES):
            some = first + tl.arange(0, NAMES)
            total += tl.load(votes + stream * known + some, mask=some < known, other=0.0)
        mean = tl.sum(total, axis=0) / known
        name = (program - column_programs) * NAMES + tl.arange(0, NAMES)
        is_name = name < known
        voted = tl.load(votes + stream * known + name, mask=is_name, other=0.0)
        place = stream * known + name
        tl.store(popularity + place, tl.log((voted + FEW_VOTES) / (mean + FEW_VOTES)), mask=is_name)
        tl.store(log_votes + place, tl.log(1 + voted / FEW_VOTES), mask=is_name)


@triton.jit
def learn_gram(products, gram, weight, centre, scatter, rough, dim, tiles, TILE: tl.constexpr, DIRECTION: tl.constexpr):
    """Add outer products to those of both sides, and make the matrix of the direction of them."""
    stream, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    i, j = (tile // tiles) * TILE + tl.arange(0, TILE), (tile % tiles) * TILE + tl.arange(0, TILE)
    mask = (i < dim)[:, None] & (j < dim)[None, :]
    place = i[:, None] * dim + j[None, :]
    side0, side1 = stream * 2 * dim * dim + place, stream * 2 * dim * dim + dim * dim + place
    gram0 = tl.load(gram + side0, mask=mask) + tl.load(products + side0, mask=mask).to(tl.float64)
    gram1 = tl.load(gram + side1, mask=mask) + tl.load(products + side1, mask=mask).to(tl.float64)
    tl.store(gram + side0, gram0, mask=mask)
    tl.store(gram + side1, gram1, mask=mask)
    if DIRECTION:
        count0 = tl.maximum(tl.load(weight + 2 * stream), NO_WEIGHT)
        count1 = tl.maximum(tl.load(weight + 2 * stream + 1), NO_WEIGHT)
        at_i = tl.load(centre + stream * dim + i, mask=i < dim, other=0.0)
        at_j = tl.load(centre + stream * dim + j, mask=j < dim, other=0.0)
        value = gram0 * (0.5 / count0) + gram1 * (0.5 / count1) - at_i[:, None] * at_j[None, :]
        ridge = (1 / count0 + 1 / count1) * (RIDGE / 4)
        value += tl.where(i[:, None] == j[None, :], ridge, 0.0)
        out = stream * dim * dim + place
        tl.store(scatter + out, value, mask=mask)
        tl.store(rough + out, value.to(rough.dtype.element_ty), mask=mask)


@triton.jit
def residual(scatter, pull, slope, left, dim, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Store pull - scatter @ slope."""
    stream = tl.program_id(1).to(tl.int64)
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    mask = (i < dim)[:, None] & (j < dim)[None, :]
    matrix = tl.load(scatter + stream * dim * dim + i[:, None] * dim + j[None, :], mask=mask, other=0.0)
    x = tl.load(slope + stream * dim + j, mask=j < dim, other=0.0)
    b = tl.load(pull + stream * dim + i, mask=i < dim, other=0.0)
    tl.store(left + stream * dim + i, b - tl.sum(matrix * x[None, :], axis=1), mask=i < dim)


@triton.jit
def correct(
    inverse, left, pull, slope, error, dim,
    ROWS: tl.constexpr, DIM: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Add inverse @ left to the slope, or begin with inverse @ pull; at last keep the largest relative error so far."""
    stream = tl.program_id(1).to(tl.int64)
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    mask = (i < dim)[:, None] & (j < dim)[None, :]
    matrix = tl.load(inverse + stream * dim * dim + i[:, None] * dim + j[None, :], mask=mask, other=0.0)
    r = tl.load((pull if FIRST else left) + stream * dim + j, mask=j < dim, other=0.0)
    value = tl.sum(matrix * r.to(matrix.dtype)[None, :], axis=1).to(tl.float64)
    if not FIRST:
        value += tl.load(slope + stream * dim + i, mask=i < dim, other=0.0)
    tl.store(slope + stream * dim + i, value, mask=i < dim)
    if LAST and tl.program_id(0) == 0:
        b = tl.load(pull + stream * dim + j, mask=j < dim, other=0.0)
        off = tl.sqrt(tl.sum(r * r, axis=0) / tl.maximum(tl.sum(b * b, axis=0), 1e-60))
        most = tl.load(error + stream)
        tl.store(error + stream, tl.where((off <= most) | (most != most), most, off))  # not a number stays one
