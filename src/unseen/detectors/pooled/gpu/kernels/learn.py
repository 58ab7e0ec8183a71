"""Triton kernels that add samples to the sums of streams and fit what follows from these sums.

Streams are learned in lockstep: `size` samples of each of S streams, of which each has `capacity` rows in a block. What
a formula means is written where torch computes it: `names`, `sides`, `likelihood`, `state`.
"""

from unseen.detectors.pooled import likelihood, names, sides, state
from unseen.gpu.triton_import import tl, triton

TEXT_SHARE = tl.constexpr(names.TEXT_SHARE)
LEAST_SHARE = tl.constexpr(names.LEAST_SHARE)
RIDGE = tl.constexpr(sides.RIDGE)
SIDE_SAMPLES = tl.constexpr(sides.START_SAMPLES)
UNKNOWN_START = tl.constexpr(sides.START_MARGIN[0])
KNOWN_START = tl.constexpr(sides.START_MARGIN[1])
HALF_SAMPLES = tl.constexpr(likelihood.HALF_SAMPLES)
NORMAL_BIMODALITY = tl.constexpr(likelihood.NORMAL_BIMODALITY)
TINY = tl.constexpr(likelihood.TINY)
FEW_VOTES = tl.constexpr(state.FEW_VOTES)
FIRST_DIRECTION = tl.constexpr(state.FIRST_DIRECTION)
NO_WEIGHT = tl.constexpr(1e-9)  # floor of the weight of a side


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
    """Sarle's coefficient as `likelihood.bimodality` does, from the sums of five powers."""
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
