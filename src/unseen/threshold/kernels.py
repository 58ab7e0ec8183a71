"""Triton kernels of what margins tell: `history`, `nodes`, `clear` and `correction` have the formulas."""

from unseen.gpu.triton_import import tl, triton
from unseen.threshold import clear, correction, history, nodes
from unseen.threshold.nodes import NODES

OUTLIER = tl.constexpr(correction.OUTLIER / NODES)
SHARE_ROUNDS, ROUNDS = tl.constexpr(correction.SHARE_ROUNDS), tl.constexpr(correction.ROUNDS)
EXPECTED_IMAGES, SHARE_IMAGES = tl.constexpr(correction.EXPECTED_IMAGES), tl.constexpr(correction.SHARE_IMAGES)
CHANGED = tl.constexpr(correction.CHANGED)
NEW_IMAGES, NEW_ROUNDS = tl.constexpr(correction.NEW_IMAGES), tl.constexpr(correction.NEW_ROUNDS)


STEP, LOWEST, HIGHEST = tl.constexpr(nodes.STEP), tl.constexpr(nodes.LOWEST), tl.constexpr(nodes.HIGHEST)
LAST_NODE = tl.constexpr(NODES - 1 - 1e-9)
RECENT = tl.constexpr(history.RECENT)
CLEAR, MARGIN_PER_CLARITY = tl.constexpr(clear.CLEAR), tl.constexpr(clear.MARGIN_PER_CLARITY)


@triton.jit
def parts_at_nodes(margin, node):
    """The part of each margin that each node gets: what is divided linearly between two neighbours."""
    position = tl.minimum(tl.maximum(margin / STEP - LOWEST / STEP, 0.0), LAST_NODE)
    return tl.maximum(1 - tl.abs(position[:, None] - node[None, :]), 0.0)


@triton.jit
def count(
    counts, ends, columns, counted_out, late_out, clear_number_out, clear_out,
    NODES: tl.constexpr, WIDTH: tl.constexpr, ROOM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store what the samples between an update and the one before add: a program for each update.

    `counts`: samples before those that wait, before the call, and after it. ROOM rows of `columns` are for the former.
    """
    update, node = tl.program_id(0), tl.arange(0, WIDTH)
    first, seen, end = tl.load(counts), tl.load(counts + 1), tl.load(ends + update)
    start = tl.where(update == 0, first, tl.load(ends + tl.maximum(update, 1) - 1))
    counted = tl.zeros((WIDTH,), dtype=tl.float64)
    late, at_nodes, number = counted, counted, 0.0 * end
    for begin in range(0, ROOM, ROWS):
        place = start + 1 + begin + tl.arange(0, ROWS)
        is_row = place <= end
        row = tl.where(place <= seen, place - first - 1, place - seen - 1 + ROOM).to(tl.int64)
        margin = tl.load(columns + 2 * row, mask=is_row, other=0.0)
        clarity = tl.load(columns + 2 * row + 1, mask=is_row, other=-float("inf"))
        is_clear, parts = clarity > CLEAR, parts_at_nodes(margin, node)
        counted += tl.sum(tl.where(is_row, place, 0.0)[:, None] * parts, axis=0)
        late += tl.sum(tl.where(is_row, tl.exp((place - end) / RECENT), 0.0)[:, None] * parts, axis=0)
        at_zero = tl.where(is_clear, margin - MARGIN_PER_CLARITY * clarity, 0.0)
        at_nodes += tl.sum(tl.where(is_clear, place, 0.0)[:, None] * parts_at_nodes(at_zero, node), axis=0)
        number += tl.sum(tl.where(is_clear, 1.0, 0.0), axis=0)
    at, inside = update * NODES + node, node < NODES
    tl.store(counted_out + at, counted, mask=inside)
    tl.store(late_out + at, late, mask=inside)
    tl.store(clear_out + at, at_nodes, mask=inside)
    tl.store(clear_number_out + update, number)


@triton.jit
def decide(
    counts, ends, columns, thresholds, probabilities, decided_out, pending_out, rows,
    NODES: tl.constexpr, UPDATES: tl.constexpr, ROOM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store the threshold that samples meet and the probability that each is known; and the samples that wait."""
    seen, last, last_end = tl.load(counts + 1), tl.load(counts + 2), tl.load(ends + UPDATES - 1)
    i, update = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, UPDATES)
    is_row, end = i < rows, tl.load(ends + update)
    row = tl.sum((end[None, :] < (seen + 1 + i)[:, None]).to(tl.int64), axis=1)
    margin = tl.load(columns + 2 * (ROOM + i), mask=is_row, other=0.0)
    margin = tl.minimum(tl.maximum(margin, LOWEST), HIGHEST)
    left = tl.minimum(((margin - LOWEST) / STEP).to(tl.int64), NODES - 2)
    low = tl.load(probabilities + row * NODES + left, mask=is_row, other=0.0)
    high = tl.load(probabilities + row * NODES + left + 1, mask=is_row, other=0.0)
    tl.store(decided_out + i, tl.load(thresholds + row, mask=is_row, other=0.0), mask=is_row)
    tl.store(decided_out + rows + i, (high - low) / STEP * (margin - (LOWEST + STEP * left)) + low, mask=is_row)
    if tl.program_id(0) == 0:
        j = tl.arange(0, WIDTH)
        place = last_end + 1 + j
        at = 2 * (ROOM + (place - seen - 1).to(tl.int64))
        for column in tl.static_range(2):
            value = tl.load(columns + at + column, mask=(place <= last) & (j < ROOM), other=0.0)
            tl.store(pending_out + 2 * j + column, value, mask=j < ROOM)


@triton.jit
def smaller(a, b):
    """The smaller of two numbers."""
    return tl.minimum(a, b)


@triton.jit
def larger(a, b):
    """The larger of two numbers."""
    return tl.maximum(a, b)


@triton.jit
def likelihood_ratio(known, unknown, node, inside):
    """How much more likely a known image is at each node than an unknown one."""
    plain = known / (unknown + OUTLIER)
    peak = tl.argmax(known, axis=0)
    falling = tl.where((node > peak) | (inside == 0), float("inf"), plain)
    falling = tl.associative_scan(falling, 0, smaller, reverse=True)
    rising = tl.associative_scan(tl.where(node < peak, -float("inf"), plain), 0, larger)
    return tl.where(inside, tl.where(node < peak, falling, rising), 1.0)


@triton.jit
def probability_of(share, ratio):
    """The probability that an image at each node is known."""
    odds = share * ratio
    return odds / (odds + (1 - share))


@triton.jit
def share_in(counted, probability):
    """The share of known images among margins, given the probability at each node."""
    return (tl.sum(counted * probability, axis=0) + SHARE_IMAGES) / (tl.sum(counted, axis=0) + 2 * SHARE_IMAGES)


@triton.jit
def share_of_known(counted, ratio):
    """The share of known images among margins, given where both kinds lie."""
    share = share_in(counted, probability_of(0.5, ratio))
    for _ in range(SHARE_ROUNDS - 1):
        share = share_in(counted, probability_of(share, ratio))
    return share


@triton.jit
def log_likelihood(counted, share, known, unknown):
    """The mean log probability of margins under a mixture."""
    mixed = share * known + (1 - share) * unknown + OUTLIER
    return tl.sum(counted * tl.log(mixed), axis=0) / tl.maximum(tl.sum(counted, axis=0), 1.0)


@triton.jit
def best_log_likelihood(counted):
    """The mean log probability of margins under their own distribution."""
    share = counted / tl.maximum(tl.sum(counted, axis=0), 1.0)
    return tl.sum(tl.where(share > 0, share * tl.log(tl.where(share > 0, share, 1.0)), 0.0), axis=0)


@triton.jit
def corrected(known, unknown, counted, node, inside):
    """What is expected of both sides, corrected by margins."""
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
    """The distribution of unknown images among margins, given that of known ones."""
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
