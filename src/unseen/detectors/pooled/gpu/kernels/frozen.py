"""Triton kernel of the frozen text: the nearest names of each sample, and moments of its logits."""

from unseen.gpu.triton_import import tl, triton


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
    """Store the nearest names of a sample and the moments of its logits, by one program for each side."""
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
