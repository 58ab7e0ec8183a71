"""Tables in Markdown."""

from collections.abc import Iterable, Iterator, Sequence


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: the first column to the left, the others to the right.

    >>> print("\\n".join(markdown_table(("set", "AUROC"), [("near", "88.0")])))
    | set | AUROC |
    |---|--:|
    | near | 88.0 |
    """
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{(len(heads) - 1) * '--:|'}"
    for cells in lines:
        yield f"| {' | '.join(cells)} |"
