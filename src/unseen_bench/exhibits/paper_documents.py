"""The sections of the paper's exhibits as one HTML page, as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from unseen.storage.files import replacing
from unseen_bench.exhibits import page, tables
from unseen_bench.exhibits.paper import METRICS, ExhibitSection, Figure, Grid
from unseen_bench.exhibits.tables import Table, tex
from unseen_bench.run import code_version, markdown_table

INTRODUCTION = (
    "Every table and figure of the paper with what could be run on the data at hand. Ours come first, then what is "
    "printed, then why they differ. AUROC and FPR95 in percent."
)
CODE = re.compile("`([^`]+)`")


def write(folder: Path, sections: Sequence[ExhibitSection]) -> list[Path]:
    """Write paper.html, paper.md, paper.tex and the figures as files of their own; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"paper.html": html(sections), "paper.md": markdown(sections), "paper.tex": latex(sections)}
    for figure in (part for one in sections for part in one.parts if isinstance(part, Figure)):
        texts[f"figure-{figure.name}.svg"] = _standalone(figure.svg)
    for name, text in texts.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text)
    return [folder / name for name in texts]


def _standalone(svg: str) -> str:
    return svg.replace("currentColor", "#1d2126").replace("<svg ", '<svg style="background: #fff" ', 1)


def markdown(sections: Sequence[ExhibitSection]) -> str:
    """The report for a Markdown file; figures are files beside it."""
    lines = ["# The paper, table by table", "", INTRODUCTION, f"unseen {code_version()}.", ""]
    lines += [*markdown_table(("exhibit", "state"), [(one.title, one.outcome.state) for one in sections]), ""]
    for one in sections:
        lines += [f"## {one.title}", "", *(line for told in one.head for line in (told, ""))]
        for part in one.parts:
            lines += [f"### {part.title}", "", *_markdown_part(part), ""]
        lines += [*(f"- {note}" for note in one.notes), ""]
    return "\n".join(lines)


def _markdown_part(part: Table | Grid | Figure) -> list[str]:
    if isinstance(part, Figure):
        return [f"![{part.title}](figure-{part.name}.svg)"]
    return list(markdown_table(part.heads, part.lines)) if isinstance(part, Grid) else [tables.markdown(part).rstrip()]


def html(sections: Sequence[ExhibitSection]) -> str:
    """The report as one self-contained page."""
    links = "".join(f'<a href="#{_anchor(one)}">{escape(one.name)}</a>' for one in sections)
    body = "".join(_html_section(one) for one in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>The paper, table by table · unseen bench</title><style>{page.STYLE.read_text()}</style></head><body>"
        f"<h1>The paper, table by table</h1><p>{INTRODUCTION}</p>"
        f'<p class="soft">unseen {escape(code_version())}. {page.PROTOCOL}</p><nav>{links}</nav>{body}</body></html>\n'
    )


def _html_section(one: ExhibitSection) -> str:
    parts = "".join(_html_part(part) for part in one.parts)
    head = "".join(f"<p>{escape(told)}</p>" for told in one.head)
    notes = "".join("<li>" + CODE.sub(r"<code>\1</code>", escape(note)) + "</li>" for note in one.notes)
    return f'<h2 id="{_anchor(one)}">{escape(one.title)}</h2>{head}{parts}<h3>Why they differ</h3><ul>{notes}</ul>'


def _html_part(part: Table | Grid | Figure) -> str:
    if isinstance(part, Table):
        return page.table_html(part, ())
    if isinstance(part, Figure):
        return f"<figure><h3>{escape(part.title)}</h3>{part.svg}</figure>"
    return f"<section><h3>{escape(part.title)}</h3>{page.grid(part.heads, part.lines, sets=part.sets)}</section>"


def _anchor(one: ExhibitSection) -> str:
    return one.name.lower().replace(" ", "-")


LATEX_HEAD = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,graphicx}
\usepackage[margin=2cm]{geometry}
\newsavebox{\grid}
\newcommand{\shrunk}[1]{\sbox{\grid}{#1}%
  \ifdim\wd\grid>\linewidth\resizebox{\linewidth}{!}{\usebox{\grid}}\else\usebox{\grid}\fi}
\begin{document}
\sloppy"""


def latex(sections: Sequence[ExhibitSection]) -> str:
    """The report as a LaTeX document; a figure is shown where its SVG was converted to PDF."""
    lines = [LATEX_HEAD]
    for one in sections:
        lines += [
            rf"\section*{{{tex(one.title)}}}",
            *(line for told in one.head for line in (_breakable(tex(told)), "")),
        ]
        for part in one.parts:
            lines += [rf"\paragraph{{{tex(part.title)}}}~\\", _latex_part(part), ""]
        lines += [r"\begin{itemize}", *(rf"\item {_breakable(tex(note))}" for note in one.notes), r"\end{itemize}", ""]
    return "\n".join([*lines, r"\end{document}", ""])


def _breakable(text: str) -> str:
    """LaTeX in which a path may go on in the next line."""
    return text.replace("/", r"/\allowbreak{}").replace(r"\_", r"\_\allowbreak{}")


def _latex_part(part: Table | Grid | Figure) -> str:
    if isinstance(part, Table):
        return "\n".join([r"\shrunk{%", tables.latex(part).rstrip() + "}"])
    if isinstance(part, Figure):
        shown = rf"\includegraphics[width=\textwidth]{{figure-{part.name}.pdf}}"
        return rf"\IfFileExists{{figure-{part.name}.pdf}}{{{shown}}}{{figure-{tex(part.name)}.svg}}"
    heads, rows = _latex_heads(part), [" & ".join(map(tex, line)) + r" \\" for line in part.lines]
    grid = [rf"\begin{{tabular}}{{l{'r' * (len(part.heads) - 1)}}}", r"\toprule", *heads, r"\midrule", *rows]
    return "\n".join([r"\shrunk{%", *grid, r"\bottomrule", r"\end{tabular}}"])


def _latex_heads(grid: Grid) -> list[str]:
    """One line of heads, or two where sets have two columns each."""
    if not grid.sets:
        return [" & ".join(map(tex, grid.heads)) + r" \\"]
    over = ["", *(rf"\multicolumn{{2}}{{c}}{{{tex(name)}}}" for name in grid.sets)]
    return [" & ".join(line) + r" \\" for line in (over, [tex(grid.heads[0]), *METRICS * len(grid.sets)])]
