"""What reports are made of, tables of texts and figures, and how they are written: HTML, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from unseen_bench.run.results import markdown_table

METRICS = ("AUROC", "FPR95")
PRINTED = ", as printed"  # ends the name of a line that a paper prints


@dataclass(frozen=True)
class Grid:
    """A table of texts; of each of `sets` it has AUROC and FPR95, after the first column."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    sets: Sequence[str] = ()
    kind: str = ""
    notes: Sequence[str] = ()

    @classmethod
    def of_sets(
        cls, title: str, first: str, sets: Sequence[str], lines: Sequence[Sequence[str]], *more: str, **own: Any
    ) -> Grid:
        """A table with the metrics of each set after its first column, and `more` columns after them."""
        heads = [first, *(f"{name} {metric}" for name in sets for metric in METRICS), *more]
        return cls(title, heads, lines, tuple(sets), **own)

    def markdown(self) -> str:
        """The table and its notes, without the title; what a paper prints in italics."""
        lines = [[f"*{first}*" if first.endswith(PRINTED) else first, *rest] for first, *rest in self.lines]
        return "\n".join([*markdown_table(self.heads, lines), *(f"\n{note}" for note in self.notes)])

    def latex(self) -> str:
        """The table as a tabular."""
        return render("grid.tex", one=self)


@dataclass(frozen=True)
class Figure:
    """A plot as SVG text, and the name of the file it is also written to."""

    title: str
    svg: str
    kind: str = ""
    name: str = ""


def render(template: str, **values: Any) -> str:
    """A template of this package with its values in place; those of LaTeX have other marks."""
    return _environment(is_tex=template.endswith(".tex")).get_template(template).render(values)


@cache
def _environment(*, is_tex: bool) -> Environment:
    left, right = "<>" if is_tex else "{}"
    made = Environment(
        *(f"{left}%", f"%{right}", 2 * left, 2 * right, f"{left}#", f"#{right}"),  # of blocks, variables and comments
        loader=PackageLoader("unseen_bench.exhibits"),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"tex": tex, "breakable": _breakable, "code": _code}
    return made


TEX = {
    **{character: rf"\{character}" for character in "_%&#${}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": ""},
    **{"µ": r"\textmu{}", "—": "--", "±": r"$\pm$", "·": r"\textperiodcentered{}"},
}


def tex(text: str) -> str:
    """Text with every character that LaTeX would take for a command written out."""
    return "".join(TEX.get(character, character) for character in text)


def _breakable(text: str) -> str:
    """LaTeX in which a path may go on in the next line."""
    return text.replace("/", r"/\allowbreak{}").replace(r"\_", r"\_\allowbreak{}")


def _code(text: str) -> Markup:
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escape(text)))
