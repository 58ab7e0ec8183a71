"""Triton kernels of TANL: a sample is four launches, whether it teaches or not; `tanl` has the formulas."""

from unseen.gpu.triton_import import tl, triton


@triton.jit
def log_odds(row, mass, logits, active, negatives, TOP: tl.constexpr, WIDTH: tl.constexpr):
    """Return the log-odds of a sample against the first 1, 2, ... of the active negatives."""
    place = tl.arange(0, WIDTH)
    inside = place < TOP
    own_mass, column = tl.load(mass + row), tl.load(active + place, mask=inside, other=0)
    x = tl.load(logits + row * negatives + column, mask=inside, other=-float("inf")).to(tl.float64)
    peak = tl.max(x, axis=0)
    rivals = tl.cumsum(tl.exp(x - peak), axis=0)
    own = tl.exp(tl.minimum(tl.maximum(own_mass - peak, -700.0), 700.0))
    share = 1 / (own + rivals)
    known, rest = tl.where(inside, own * share, 0.0), tl.where(inside, rivals * share, 0.0)
    return tl.log(tl.sum(known, axis=0) / TOP) - tl.log(tl.sum(rest, axis=0) / TOP)


@triton.jit
def threshold_of(above, above_total, THRESHOLDS: tl.constexpr, BINS: tl.constexpr):
    """Return the threshold with the least variance within its two sides, the middle one of equals."""
    bins = tl.arange(0, BINS)
    whole, whole_total = tl.max(above, axis=0), tl.max(above_total, axis=0)
    below, below_total = whole - above, whole_total - above_total
    upper, lower = above_total.to(tl.float64), below_total.to(tl.float64)
    between = upper * upper / tl.maximum(above, 1).to(tl.float64) + lower * lower / tl.maximum(below, 1).to(tl.float64)
    is_split = (above > 0) & (below > 0)
    between = tl.where(is_split & (bins < THRESHOLDS), between, -float("inf"))
    equal = ((between == tl.max(between, axis=0)) & (bins < THRESHOLDS)).to(tl.int32)
    middle = (tl.cumsum(equal, axis=0) == tl.sum(equal, axis=0) // 2 + 1) & (equal > 0)
    return tl.sum(tl.where(middle, bins, 0), axis=0).to(tl.float64) / THRESHOLDS


@triton.jit
def score_sample(
    before, numbers, seen, mass, logits, active, counts, totals, shares, score_out, route_out, gap_in, count, queue,
    window, negatives, TOP: tl.constexpr, WIDTH: tl.constexpr, THRESHOLDS: tl.constexpr, BINS: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Score the next sample and decide whom it teaches; in a second program, score the one before again if it taught.

    `numbers`: the sample, the samples scored in the stream, the side it teaches (-1: none), its place in the queue, and
    how many negatives are candidates; `before` has those of the sample before, which both programs read.
    """
    t, scored, last = tl.load(before), tl.load(before + 1), tl.load(count)
    if tl.program_id(0) > 0:
        if (t <= last) & (tl.load(before + 2) >= 0):
            tl.store(score_out + t - 1, log_odds(t - 1, mass, logits, active, negatives, TOP, WIDTH))
    else:
        is_row, bins, place = t < last, tl.arange(0, BINS), scored % window
        # loaded before the score is known, so that nothing waits for them afterwards
        gap, oldest = tl.load(gap_in), tl.load(shares + place).to(tl.int64)
        old_counts, old_totals = tl.load(counts + bins), tl.load(totals + bins)
        known_seen, unknown_seen = tl.load(seen), tl.load(seen + 1)
        side = t * 0 - 1
        tl.store(numbers + 3, t * 0)
        if is_row:
            score = log_odds(t, mass, logits, active, negatives, TOP, WIDTH)
            share = 1 / (1 + tl.exp(-score))
            whole = tl.floor(share * UNIT + 0.5).to(tl.int64)
            leaves = (scored >= window).to(tl.int64)
            enter, leave = (
                (bins == whole * THRESHOLDS // UNIT).to(tl.int64),
                (bins == oldest * THRESHOLDS // UNIT).to(tl.int64),
            )
            counted = old_counts + enter - leaves * leave
            total = old_totals + enter * whole - leaves * leave * oldest
            above, above_total = tl.cumsum(counted, axis=0, reverse=True), tl.cumsum(total, axis=0, reverse=True)
            bound = threshold_of(above, above_total, THRESHOLDS, BINS)
            is_known = (share > bound + gap * (1 - bound)).to(tl.int64)
            is_unknown = (share < bound - gap * bound).to(tl.int64) * (1 - is_known)
            side = is_known + 2 * is_unknown - 1
            tl.store(score_out + t, score)
            tl.store(counts + bins, counted)
            tl.store(totals + bins, total)
            tl.store(shares + place, whole.to(tl.int32))
            tl.store(route_out + t, (is_known - is_unknown).to(tl.int8))
            scored += 1
            if side >= 0:
                taught = tl.where(side == 0, known_seen, unknown_seen)
                tl.store(numbers + 3, taught % queue)
                tl.store(seen + side, taught + 1)
        tl.store(numbers, t + 1)
        tl.store(numbers + 1, scored)
        tl.store(numbers + 2, side)
        tl.store(numbers + 4, t * 0)


@triton.jit
def push_sample(
    numbers, seen, rows, activation, parts, totals, excess, queue, size, groups, negatives, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Put the activation of a sample that teaches into the queue of its side, and sum it up anew.

    All that is summed up is loaded at once: a load after the other would take most of the time.
    """
    t, side, place = tl.load(numbers) - 1, tl.load(numbers + 2), tl.load(numbers + 3)
    if side >= 0:
        column = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
        inside, group = column < negatives, place // size
        at, g = group * size + tl.arange(0, SIZE)[:, None], tl.arange(0, GROUPS)[:, None]
        is_member = (at < group * size + size) & (at < queue)
        own = tl.load(rows + t * negatives + column, mask=inside, other=0.0)
        members = tl.load(
            activation + (side * queue + at) * negatives + column[None, :],
            mask=inside[None, :] & is_member & (at != place), other=0.0,
        )  # fmt: skip
        sums = tl.load(
            parts + (side * groups + g) * negatives + column[None, :],
            mask=inside[None, :] & (g < groups) & (g != group), other=0.0,
        )  # fmt: skip
        rest = tl.load(totals + (1 - side) * negatives + column, mask=inside, other=0.0)
        tl.store(activation + (side * queue + place) * negatives + column, own, mask=inside)
        part = tl.sum(tl.where(at == place, own[None, :], members), axis=0)
        tl.store(parts + (side * groups + group) * negatives + column, part, mask=inside)
        total = tl.sum(tl.where(g == group, part[None, :], sums), axis=0)
        tl.store(totals + side * negatives + column, total, mask=inside)
        known, unknown = tl.where(side == 0, total, rest), tl.where(side == 0, rest, total)
        known_count = tl.minimum(tl.maximum(tl.load(seen), 1), queue).to(own.dtype)
        unknown_count = tl.minimum(tl.maximum(tl.load(seen + 1), 1), queue).to(own.dtype)
        tl.store(excess + column, known / known_count - unknown / unknown_count, mask=inside)


@triton.jit
def find_candidates(
    numbers, excess, active, candidates, negatives, TOP: tl.constexpr, TOP_WIDTH: tl.constexpr, WIDTH: tl.constexpr
):
    """Collect the negatives with no more excess than some active one has: the next active ones are among them."""
    if tl.load(numbers + 2) >= 0:
        place = tl.arange(0, TOP_WIDTH)
        inside = place < TOP
        one = tl.load(active + place, mask=inside, other=0)
        most = tl.max(tl.load(excess + one, mask=inside, other=-float("inf")), axis=0)
        i = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
        own = tl.load(excess + i, mask=i < negatives, other=float("inf"))
        is_candidate = ((own <= most) & (i < negatives)).to(tl.int64)
        first = tl.atomic_add(numbers + 4, tl.sum(is_candidate, axis=0))
        tl.store(candidates + first + tl.cumsum(is_candidate, axis=0) - 1, i, mask=is_candidate > 0)


@triton.jit
def rank_candidates(numbers, excess, active, candidates, TOP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Put the candidates with the least excess in order, of equals the first: each counts those before it."""
    count = tl.load(numbers + 4)
    if tl.program_id(0) * ROWS < count:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        i = tl.load(candidates + row, mask=row < count, other=0)
        own = tl.load(excess + i, mask=row < count, other=float("inf"))
        before = tl.zeros((ROWS, WIDTH), dtype=tl.int32)
        for first in range(0, count, WIDTH):
            column = first + tl.arange(0, WIDTH)
            j = tl.load(candidates + column, mask=column < count, other=0)
            other = tl.load(excess + j, mask=column < count, other=float("inf"))
            is_before = (other[None, :] < own[:, None]) | ((other[None, :] == own[:, None]) & (j[None, :] < i[:, None]))
            before += is_before.to(tl.int32)
        rank = tl.sum(before, axis=1)
        tl.store(active + rank, i, mask=(row < count) & (rank < TOP))
