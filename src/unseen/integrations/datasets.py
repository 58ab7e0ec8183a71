"""Verdicts as columns of a Hugging Face data set."""

from collections.abc import Callable, Mapping
from typing import Any

from unseen.session import Session

COLUMNS = ("verdict", "name", "nearest", "margin", "threshold", "p_known", "likely")


def judge_rows(
    session: Session, *, column: str = "image", learn: bool = True
) -> Callable[[Mapping[str, list[Any]]], dict[str, list[Any]]]:
    """A function for `dataset.map(..., batched=True)` that adds a verdict to each row.

    `column` holds images, if the session has an encoder, or features. With `learn` the data set is one stream, in its
    order: pass no `num_proc`. Without it nothing is learned.

    >>> from unseen import Session, demo
    >>> judge = judge_rows(Session(demo.load().space), column="z")
    >>> judge({"z": demo.load().z[:2].tolist()})["nearest"]
    ['bird', 'bird']
    """

    def judge(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        verdicts = (session.observe if learn else session.score)(rows[column])
        found = verdicts.columns()
        return {name: found[name] for name in COLUMNS}

    return judge
