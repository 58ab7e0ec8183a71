"""docs/leaderboard.md: causal, label-free methods in one setting for all sets.

python benchmarks/leaderboard.py ../shared/clip-b16
"""

from __future__ import annotations

from pathlib import Path

from unseen_bench import suites
from unseen_bench.run import code_version, command, leaderboard, markdown_table


def main() -> None:
    parser = command.parser(__doc__, features=True)
    parser.add_argument("--out", type=Path, default=Path("results"), help="where rows are kept and resumed from")
    parser.add_argument("--page", type=Path, default=Path("docs/leaderboard.md"))
    parser.add_argument("--workers", type=int, help="processes; as many as cores if not given")
    arguments = command.parse(parser)
    loaded = [suites.load(name, arguments.folder) for name in leaderboard.SUITES]
    lines = []
    for one in leaderboard.standings(leaderboard.METHODS, loaded, out=arguments.out, workers=arguments.workers):
        print(one.method, f"{one.average:.4f}", flush=True)
        lines.append(one)
    lines.sort(key=lambda one: -one.average)
    arguments.page.write_text(page([one.cells() for one in lines]))


def page(lines: list[list[str]]) -> str:
    """The page."""
    table = "\n".join(markdown_table(leaderboard.HEADS, lines))
    return (
        f"# Leaderboard\n\n{leaderboard.RULE}\n\n"
        "AUROC / FPR95 (fpr95_id) of the margin in percent, mean over the sets of each suite and over "
        f"{leaderboard.SEEDS} orders; sorted by the mean AUROC over suites. Text is stored, one label space for all "
        "methods of a suite. `pooled` is this project's own and was developed with imagenet200 and imagenet200-lowres "
        "at hand. Known classes are equally frequent in these suites, which clipscope's counter assumes. "
        f"Made by benchmarks/leaderboard.py, unseen {code_version()}.\n\n{table}\n"
    )


if __name__ == "__main__":
    main()
