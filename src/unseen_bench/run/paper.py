"""Every table and figure of the paper: which suite and runs it takes, what stands in for it, and why ours differs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from unseen.errors import SettingError
from unseen_bench import suites
from unseen_bench.run.results import Row
from unseen_bench.run.runs import FITTED, Method, Run, default_detectors, list_runs, with_sweeps
from unseen_bench.suites import Suite

TABLE = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
METHODS, NOTES = TABLE.pop("methods"), TABLE.pop("notes")
ROUNDED = 0.011  # what two decimals of the parts and of their mean can differ by


def methods_of(names: Sequence[str]) -> tuple[str, ...]:
    """The methods of a list, in which `*name` stands for another list."""
    lists = {"default": default_detectors(), **METHODS}
    parts = [methods_of(lists[one[1:]]) if one.startswith("*") else (one,) for one in names]
    return tuple(name for part in parts for name in part)


@dataclass(frozen=True)
class Exhibit:
    """One table or figure of the paper."""

    name: str
    title: str
    suites: tuple[str, ...]  # over images, as in print
    stand_ins: tuple[str, ...] = ()  # over feature files, where they ask the same question
    methods: tuple[str, ...] = ("*all",)
    orders: tuple[str, ...] = ("shuffled",)
    sweeps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ("oracle", "own")  # why ours differs
    printed_methods: tuple[str, ...] = ()  # the lines of the suite's printed table that are its own; all if empty
    printed_elsewhere: tuple[str, ...] = ()  # those of another exhibit
    printed_sets: tuple[str, ...] = ()  # its columns; all if empty
    printed: tuple[Mapping[str, Any], ...] = ()  # whole tables that are printed
    has_published: bool = False  # figures of other papers stand in it
    stand_in_seeds: int | None = None  # of a stand-in at most, where a seed is many streams

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> Exhibit:
        """The exhibit that the package's table describes."""
        own: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in table.items()}
        return cls(name, **own)

    @property
    def short_name(self) -> str:
        """What `--tables` calls it."""
        return self.name.removeprefix("Table ").replace("Figure ", "F")

    def most_seeds(self, suite: Suite) -> int | None:
        """How many seeds it has of a suite at most, None for as many as are asked for."""
        own: int | None = suite.table.get("seeds")
        return own if suite.source.name in self.suites else own or self.stand_in_seeds

    def runs(self, suite: Suite, seeds: int) -> list[Run]:
        """Its runs of a suite; a detector of patches or views is left out where there are none."""
        seeds = min(seeds, self.most_seeds(suite) or seeds)
        methods = [name for name in methods_of(self.methods) if suite.has_parts(Method.parse(name).kind.parts)]
        fixed = [name for name in methods if name in FITTED]  # once: no order can change them
        moving = [name for name in methods if name not in FITTED]
        runs = list_runs(suite, names=moving, orders=self.orders, seeds=seeds)
        if fixed and not self.sweeps and suite.table.get("fitted", True):
            runs += list_runs(suite, names=fixed, orders=self.orders[:1], seeds=1)
        return with_sweeps(runs, self.sweeps)


PAPER = tuple(Exhibit.of(name, table) for name, table in TABLE.items())


def select_exhibits(names: str | None) -> list[Exhibit]:
    """The exhibits named by `1,9,F1`, or all of them."""
    if not names:
        return list(PAPER)
    wanted = names.upper().replace(" ", "").split(",")
    known = {one.short_name: one for one in PAPER}
    if unknown := [name for name in wanted if name not in known]:
        raise SettingError(f"expected exhibits out of {', '.join(known)}, got {', '.join(unknown)}; write 1,9,F1")
    return [one for name, one in known.items() if name in wanted]


@dataclass
class Outcome:
    """What became of an exhibit: what could run, the rows that were computed, and what was missing after the run."""

    exhibit: Exhibit
    images: Sequence[str] = ()  # suites over images that have known images and at least one unknown set
    stand_ins: Sequence[str] = ()  # over feature files that are there; not run where nothing of the images is missing
    missing: list[str] = field(default_factory=list)  # a sentence for each suite that could not run, or not whole
    ran: list[tuple[Suite, Sequence[Row]]] = field(default_factory=list)
    partial: set[str] = field(default_factory=set)  # the suites that ran without the whole of some set

    def add(self, suite: Suite, rows: Sequence[Row]) -> None:
        """Keep the rows of a suite, and which of its sets it did not have whole."""
        self.ran.append((suite, rows))
        if lacking := sets_not_whole(suite):
            self.partial.add(suite.source.name)
            self.missing.append(f"{suite.name} ran without the whole of {', '.join(lacking)}")

    @property
    def state(self) -> str:
        """In a few words what was done."""
        told: dict[str, list[str]] = {
            "as printed, on": [],
            "in part, on": [],
            "stand-in:": [],
            "stand-in, in part:": [],
        }
        for suite, _ in self.ran:
            is_own, is_whole = suite.source.name in self.exhibit.suites, suite.source.name not in self.partial
            told[list(told)[2 * (not is_own) + (not is_whole)]].append(suite.name)
        return "; ".join(f"{how} {', '.join(some)}" for how, some in told.items() if some) or "needs data"

    def is_complete(self, *, data: bool, features: bool) -> bool:
        """Whether everything ran whole that the folders given were to allow: its suites, or else its stand-ins."""
        wanted = self.exhibit.suites if data else self.exhibit.stand_ins if features else ()
        names = {suite.source.name for suite, _ in self.ran} - self.partial
        return set(wanted) <= names


def find(exhibit: Exhibit, *, data: Path | None, features: Path | None) -> Outcome:
    """Which suites of an exhibit can run on what lies in the two folders; nothing is loaded yet."""
    lacking = {name: lacks(name, data) for name in exhibit.suites}
    missing = [f"{name} needs {told}" for name, told in lacking.items() if told]
    if data and all(suites.is_whole(name, data) for name in exhibit.suites):
        return Outcome(exhibit, exhibit.suites)
    files = {name: missing_files(name, features) for name in exhibit.stand_ins}
    missing += [f"{name} (stand-in) needs {', '.join(some)} in --features" for name, some in files.items() if some]
    runnable = [name for name, told in lacking.items() if not told]
    return Outcome(exhibit, runnable, [name for name, some in files.items() if not some], missing)


def lacks(name: str, data: Path | None) -> str:
    """What a suite over images cannot run without, and how to see or make it; nothing where it can run."""
    if data is None:
        return f"--data, a folder of images: `unseen bench {name} --check DATA` says which"
    counts = {one.set: one.images for one in suites.inventory(name, data)}
    lacking = [] if counts.pop(suites.KNOWN) else ["known images"]
    lacking += [] if any(counts.values()) else [f"one of {', '.join(counts)}"]
    if lacking:
        return f"{' and '.join(lacking)}: `unseen bench {name} --check {data}` says where"
    learned = suites.learned_file(name)
    if learned and not (data / learned).is_file():
        return f"{data / learned}: `unseen bench learn --method lapt --examples PHOTOS -o {data / learned}` writes it"
    return ""


def sets_not_whole(suite: Suite) -> list[str]:
    """The sets of which a suite that was read has not every image, each with how many it has."""
    counts = dict(zip(suite.pool.sources, suite.pool.source.bincount().tolist(), strict=True))
    rows = {suites.KNOWN: suite.table[suites.KNOWN], **suite.table["unknown"]}
    wanted = {name: row.get("expected", max(1, counts.get(name, 0))) for name, row in rows.items()}
    return [
        f"{name} ({counts.get(name, 0):,} of {number:,} images)"
        for name, number in wanted.items()
        if counts.get(name, 0) != number
    ]


def missing_files(name: str, folder: Path | None) -> list[str]:
    """The feature files of a suite that are not in `folder`."""
    wanted = suites.feature_files_of(name)
    return [file for file in wanted if folder is None or not (folder / file).is_file()]


def printed_results(exhibit: Exhibit) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Suite -> method -> set -> [AUROC, FPR95] of what the paper prints in an exhibit."""
    return {name: dict(_printed_lines(exhibit, suites.read(name))) for name in exhibit.suites}


def _printed_lines(exhibit: Exhibit, table: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, list[float]]]]:
    columns = exhibit.printed_sets or (*table["unknown"], *table.get("groups", ("average",)))
    for method, figures in table.get("paper", {}).items():
        if method in (exhibit.printed_methods or table["paper"]) and method not in exhibit.printed_elsewhere:
            yield method, {name: figures[name] for name in columns if name in figures}


def odd_averages(exhibit: Exhibit) -> list[str]:
    """The averages that the paper prints and that are not the means of the sets it prints beside them."""
    told: list[str] = []
    own = {} if exhibit.printed or exhibit.sweeps else printed_results(exhibit)
    for name, lines in own.items():
        groups = suites.groups_of(suites.read(name))
        for method, figures in lines.items():
            for group, sets in groups.items():
                if group in figures and all(one in figures for one in sets):
                    told += _odd_average(f"{name}, {method}, {group}", figures[group], [figures[one] for one in sets])
    for seed, *cells in (line for table in exhibit.printed if "sets" in table for line in table["lines"]):
        *pairs, average = zip(map(float, cells[::2]), map(float, cells[1::2]), strict=True)
        told += _odd_average(f"seed {seed}", average, pairs) if seed.isdigit() else []
    return told


def _odd_average(where: str, printed: Sequence[float], parts: Sequence[Sequence[float]]) -> Iterator[str]:
    for metric, place in (("AUROC", 0), ("FPR95", 1)):
        mean = fmean(part[place] for part in parts)
        if abs(mean - printed[place]) > ROUNDED:
            yield f"{where}: {metric} is printed {printed[place]:.2f}, the mean of its sets is {mean + 1e-9:.2f}"
