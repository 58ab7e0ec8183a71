"""The commands of the laboratory, which join those of the product; each is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unseen.cli import options

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of results; resumes.")]
Seeds = Annotated[int, typer.Option(help="How many random orders.", min=1)]
DeviceOfRuns = Annotated[
    str,
    typer.Option(
        help="cpu, or cuda: one process, all seeds of a set in one go where the detector can.", **options.MORE
    ),
]
FeatureFiles = Annotated[
    Path | None, typer.Option(help="Folder of feature files the suite names.", exists=True, file_okay=False)
]
Pictures = Annotated[
    Path | None, typer.Option(help="Folder of images in OpenOOD's layout; encoded once.", exists=True, file_okay=False)
]


class DefaultGroup(TyperGroup):
    """A group whose first command takes all words where the first of them names no other: `unseen bench SUITE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The subcommand that the first word names and the other words, or the first command and all words."""
        first, *others = self.commands
        return (args[0], self.commands[args[0]], args[1:]) if args[0] in others else ("", self.commands[first], args)


def join(app: typer.Typer) -> None:
    """Add the commands of the laboratory to those of the product."""
    group = typer.Typer(
        cls=DefaultGroup,
        context_settings={"ignore_unknown_options": True},  # every word, `--help` too, is left to the commands
        add_help_option=False,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        help=(bench.__doc__ or "").partition("\n")[0],
    )
    for command in (bench, compare, paper, gap, learn):
        group.command()(command)
    app.command(rich_help_panel="Judge photos")(demo)
    app.add_typer(group, name="bench", rich_help_panel="Benchmarks")


def bench(
    suite: Annotated[
        str | None, typer.Argument(help="A suite, such as imagenet200 (--check lists them), or your own TOML table.")
    ] = None,
    features: FeatureFiles = None,
    data: Pictures = None,
    detectors: Annotated[
        str,
        typer.Option(help="Comma-separated names, or module:Class; what needs ID images or the truth stands apart."),
    ] = "",
    seeds: Seeds = 3,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for rows, tables and (extra plot) a page; resumes.")
    ] = None,
    as_json: options.AsJson = False,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Only list what of the suite, or of every suite, lies in this folder.",
            exists=True,
            file_okay=False,
            **options.MORE,
        ),
    ] = None,
    submit: Annotated[
        str | None,
        typer.Option(help="module:Class or file.py:Class: print its line of the leaderboard.", **options.MORE),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Reads --data; the suite's own if not given.", **options.MORE)
    ] = None,
    device: DeviceOfRuns = "cpu",
) -> None:
    """Stream every unknown set of a suite through every detector; print verdict and ranking metrics.

    Example: `unseen bench imagenet200 --features features/ --seeds 10 -o results/`

    Detectors see features only, in order, and a run whose early scores follow later samples is refused. What is
    fitted on ID images or routed by the truth stands in tables of its own. `unseen bench compare online neglabel
    -o results/` says which differences are larger than seeds and samples explain.
    """
    from unseen_bench.cli import bench as job

    if check:
        raise typer.Exit(0 if job.print_found(suite, check) else 1)
    if submit:
        job.print_standing(submit, features, out)
        return
    source = job.Source(suite, features, data, encoder)
    raise job.run(source, job.Plan(detectors, seeds, out), device=device, as_json=as_json)


def compare(
    first: Annotated[str, typer.Argument(help="A detector of the results, or a folder of results.")],
    second: Annotated[str, typer.Argument(help="Another detector, or another folder.")],
    out: Out = Path("results"),
    as_json: options.AsJson = False,
) -> None:
    """Print SECOND less FIRST with its interval, set by set, and whether it is a difference.

    Example: `unseen bench compare neglabel online -o results/`
    """
    from unseen_bench.cli import bench as job

    job.print_comparisons(first, second, out, as_json=as_json)


def paper(
    data: Pictures = None,
    features: FeatureFiles = None,
    tables: Annotated[str | None, typer.Option(help="Only these, such as 1,9,13,F1.")] = None,
    seeds: Seeds = 10,
    out: Out = Path("results"),
    as_json: options.AsJson = False,
    encoder: Annotated[
        str | None,
        typer.Option(help="Reads --data in place of ViT-B/16; other backbones stay what they are.", **options.MORE),
    ] = None,
    device: DeviceOfRuns = "cpu",
) -> None:
    """Run every table and figure of the paper that the data at hand allows; write paper.html, paper.md and paper.tex.

    Example: `unseen bench paper --features features/ --tables 1,9,F1 --seeds 3 -o results/`

    With neither folder it runs nothing and writes which files each table needs. A table of which anything is missing
    says so in its head, and the exit code is 1. `unseen bench imagenet --check DIR` lists what is there.
    """
    from unseen_bench.cli import paper as job

    setting = job.Setting(data, features, encoder, seeds, device, out)
    raise job.run(setting, tables, as_json=as_json)


def gap(
    features: options.Features,
    space: options.Space,
    as_json: options.AsJson = False,
) -> None:
    """Measure the gap between text and image prototypes (Theorems 1-3 of the paper) on your own features.

    Example: `unseen bench gap features.safetensors --space space.safetensors`

    A distance runs from 0 (the name is already the best prototype) over 2 (orthogonal) to 4. The lower bound is near 0
    as soon as there are more images than dimensions; the bounds beside it say what the leading directions, or a class's
    own images, could reach at best. Regret that flattens means that the online bank has caught up. The search for the
    best prototypes says whether it converged: 5,000 images and 1,000 names take some minutes.
    """
    from unseen_bench.cli import gap as job

    job.run(features, space, as_json=as_json)


def learn(
    examples: Annotated[str, typer.Option(help="Photos of your classes, a folder per class.")],
    method: Annotated[str, typer.Option(help="One of: coop, locoop, lsn, negprompt, lapt.")] = "locoop",
    encoder: options.Encoder = "ViT-B/16",
    space: options.SpaceInstead = None,
    file: Annotated[Path, typer.Option("-o", "--output", help="Label space file to write.")] = Path(
        "prompts.safetensors"
    ),
    as_json: options.AsJson = False,
) -> None:
    """Learn prompts for your classes from a few photos of each; write a label space that every detector can read.

    Example: `unseen bench learn --method locoop --examples known/ --encoder ViT-B/16 -o prompts.safetensors`

    Needs the text tower of a CLIP model (a hub id or a folder; not `offline`).
    Then: `unseen detect photos/ --space prompts.safetensors`.
    """
    from unseen_bench.cli import learn as job
    from unseen_bench.methods.prompts import LearnOptions

    raise job.run(examples, LearnOptions(method), encoder, space, file, as_json=as_json)


def demo(
    discover: Annotated[
        bool, typer.Option("--discover", help="Go on: why, groups of the unknown images, and groups that become names.")
    ] = False,
    photos: Annotated[
        Path | None,
        typer.Option(help="Only write a hundred of the images into this folder, to try `unseen detect`."),
    ] = None,
    report: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("unseen-demo.html"),
    as_json: options.AsJson = False,
) -> None:
    """Run the main job on real images in the package: no download, no GPU, a few seconds.

    Example: `unseen demo --report demo.html`

    Known are six animals; vehicles, digits and clothes are unknown. The truth is used only afterwards, to judge.
    """
    from unseen_bench.cli import demo as job

    job.run(report, photos=photos, discover=discover, as_json=as_json)
