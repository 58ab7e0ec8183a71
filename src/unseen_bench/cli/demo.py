"""unseen demo: the main job on a small real stream inside the package."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table

from unseen import Session
from unseen import demo as embedded
from unseen.cli import output
from unseen.cli.discover import group_lines
from unseen.cli.edit import print_edit
from unseen.cli.session import threshold_in_words
from unseen.discover import Group, Grouping, explain, group, promote
from unseen.report import charts, group_page, stream_page
from unseen.verdicts import Verdicts
from unseen_bench.demo import trial as embedded_truth
from unseen_bench.evaluate import Evaluation, judge, over_time
from unseen_bench.trial import Trial


@dataclass(frozen=True)
class DemoNumbers:
    """How much is printed, and which groups become names."""

    shown: int = 6  # verdicts printed from either end of the stream
    slices: int = 12
    first: int = 1000  # images before groups are made with --discover; the others come afterwards
    large: int = 30  # images of a group that becomes a name
    weak: float = 0.25  # share under which a suggestion is not taken


NUMBERS = DemoNumbers()

PHOTOS = {"animals": 8, "vehicles": 4}  # of each kind that `--photos` writes
OTHER_PHOTOS = 2  # of each digit and piece of clothing
WRITTEN = ("digit",)  # what somebody who looks at the pictures writes where suggestions are weak
METRICS = {"auroc": "AUROC", "fpr95_id": "FPR95", "accuracy": "right name"}


def run(report: Path, *, photos: Path | None, discover: bool, as_json: bool) -> None:
    """Stream the embedded images through a detector; print its verdicts and, afterwards, how right they are."""
    pack, truth = embedded.load(), embedded_truth()
    order = truth.arrival("shuffled", seed=0)
    pack, truth = pack[order], truth[order]
    if photos:
        _write_photos(pack, truth, photos, as_json=as_json)
        return
    if not as_json:
        _print_images(pack, truth)  # before the work: someone is waiting for a first line
    session = Session(pack.space)
    if discover:
        run_discover(pack, session, report, as_json=as_json)
        return
    verdicts = session.observe(pack.z, pack.keys)
    learning = judge(session.detector, verdicts.output, truth)
    # the same detector as it was before the first sample: what learning adds is the difference
    before = session.detector.score(session.detector.start(), pack.z)
    frozen = judge(session.detector, before, truth)
    log = stream_page.StreamLog()
    log.add(pack.keys, verdicts, pack.thumbnails)
    stream_page.write(report, log, session, title="unseen demo", sections=[_truth_section(frozen, learning)])
    if as_json:
        run = {"detector": session.detector.name, "report": str(report)}
        counts = {"samples": len(verdicts), **verdicts.counts}
        threshold = {"threshold": session.threshold, "recall_interval": session.recall_interval}
        metrics = {"frozen": frozen.metrics, "learning": learning.metrics, **_right_shares(verdicts, learning)}
        output.emit({**run, **counts, **threshold, **metrics})
        return
    _print_verdicts(pack, session, verdicts)
    _print_truth(verdicts, frozen, learning)
    output.out.print(f"\nreport with the pictures: {report}")


def _write_photos(pack: embedded.Pack, truth: Trial, folder: Path, *, as_json: bool) -> None:
    """Write typical images of every kind as JPEG files; their numbers, and so their names, follow the stream."""
    folder.mkdir(parents=True, exist_ok=True)
    places = typical_places(pack, truth)
    for number, place in enumerate(places):
        kind = pack.keys[place].partition("/")[0].replace(" ", "-")
        (folder / f"{number:03}-{kind}.jpg").write_bytes(pack.thumbnails[place])
    if as_json:
        output.emit({"photos": len(places), "folder": str(folder)})
    else:
        output.out.print(
            f"{len(places)} photos in {folder}; next: unseen detect {quote(str(folder))} --label dog --label cat"
        )


def typical_places(pack: embedded.Pack, truth: Trial) -> list[int]:
    """The places in the stream of the images nearest to the mean of their kind: clear ones, of every kind."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(pack.keys):
        places.setdefault(key.partition("/")[0], []).append(place)
    chosen: list[int] = []
    for own in places.values():
        z = pack.z[own]
        count = PHOTOS.get(truth.sources[int(truth.source[own[0]])], OTHER_PHOTOS)
        chosen += [own[i] for i in (z @ z.mean(0)).argsort(descending=True)[:count].tolist()]
    return sorted(chosen)


def _print_images(pack: embedded.Pack, truth: Trial) -> None:
    counts = Counter(truth.sources[i] for i in truth.source.tolist())
    kinds = ", ".join(f"{count:,} {source}" for source, count in sorted(counts.items()))
    text = f"{len(pack.keys):,} real images ({kinds}), encoded beforehand; nothing is downloaded"
    output.out.print(text)


def _print_verdicts(pack: embedded.Pack, session: Session, verdicts: Verdicts) -> None:
    output.out.print(f"{stream_page.about(session)}\n")
    columns = output.EIGHTY if output.out.width >= output.COLUMNS else output.widths(output.out.width, 0, 0)
    lines = [output.verdict_line(record, columns) for record in verdicts.records(pack.keys)]
    print("\n".join([*lines[: NUMBERS.shown], "…", *lines[-NUMBERS.shown :]]))
    counts, tally = " · ".join(f"{word} {count:,}" for word, count in verdicts.counts.items()), session.snapshot.tally
    output.out.print(
        f"\n{counts} · learned from {int(tally.taught_known + tally.taught_unknown):,} · {threshold_in_words(session)}"
    )
    called = Counter(verdict.name for verdict in verdicts if not verdict.unknown)
    output.out.print("called " + " · ".join(f"{name} {count:,}" for name, count in called.most_common()))


def _print_truth(verdicts: Verdicts, frozen: Evaluation, learning: Evaluation) -> None:
    output.out.print("\nagainst the truth, which the detector never saw, in percent:")
    table = Table("", "frozen", "learning", box=None, padding=(0, 2))
    for what, before, after in _metric_rows(frozen, learning):
        table.add_row(what, before, after)
    output.out.print(table)
    kept = _right_shares(verdicts, learning)
    output.out.print(
        f"after warming up: {100 * kept['known_accepted']:.1f} % of the known accepted (aim: 95 %), "
        f"{100 * kept['unknown_rejected']:.1f} % of the unknown rejected"
    )


def _metric_rows(frozen: Evaluation, learning: Evaluation) -> list[tuple[str, str, str]]:
    rows = [(title, frozen.metrics[name], learning.metrics[name]) for name, title in METRICS.items()]
    for source in learning.by_source:
        rows.append((f"AUROC, {source}", frozen.by_source[source]["auroc"], learning.by_source[source]["auroc"]))
    return [(what, f"{100 * before:.1f}", f"{100 * after:.1f}") for what, before, after in rows]


def _right_shares(verdicts: Verdicts, report: Evaluation) -> dict[str, float]:
    """The shares of right verdicts among known and among unknown images, after warming up."""
    is_id, ready = report.trial.is_id, ~verdicts.warming
    accepted, rejected = ~verdicts.unknown[ready & is_id], verdicts.unknown[ready & ~is_id]
    return {"known_accepted": float(accepted.double().mean()), "unknown_rejected": float(rejected.double().mean())}


def _truth_section(frozen: Evaluation, learning: Evaluation) -> stream_page.TableSection:
    series = {
        kind: [(row["samples"], 100 * row["auroc"]) for row in over_time(report, points=NUMBERS.slices)]
        for kind, report in (("frozen", frozen), ("online", learning))
    }
    drawable = any(not math.isnan(value) for points in series.values() for _, value in points)
    note = (
        "The truth was used only here, after every verdict. Frozen: the same detector before its first image. "
        "In percent: AUROC and right names, more is better; FPR95, less. The curves are AUROC by slice of the stream."
    )
    legend = (("frozen", "frozen"), ("online", "learning"))
    chart = charts.curves(series, legend) if drawable else None
    return stream_page.TableSection(
        "Against the truth", note, ("", "frozen", "learning"), _metric_rows(frozen, learning), chart
    )


def run_discover(pack: embedded.Pack, session: Session, report: Path, *, as_json: bool) -> None:
    """Observe, explain, group, promote by the best suggestions, observe the rest; print which images got them."""
    z, keys = pack.z, pack.keys
    session.observe(z[: NUMBERS.first], keys[: NUMBERS.first])
    found = group(session, embedded.vocabulary())
    thumbnails = dict(zip(keys, pack.thumbnails, strict=True))
    group_page.write(report, found, title="unseen demo: what is unknown", thumbnails=thumbnails)
    if not as_json:
        _print_groups(found)
    after, names = _promote_large_groups(found, as_json=as_json)
    rows = _new_name_rows(pack, found.session, after, names)
    if as_json:
        groups = [one.row() for one in found.groups]
        output.emit({"groups": groups, "promoted": names, "after": rows, "report": str(report)})
        return
    rest = len(z) - NUMBERS.first
    print(f"\nthe other {rest} images, called by the new names; what they are (the truth is used only here):")
    for row in rows:
        shown = ", ".join(f"{kind} {count}" for kind, count in row["shown"].items())
        print(f"  {row['name']:<24}{row['images']:>4} images: {shown}")
    print(f"\nreport with the pictures: {report}")


def _print_groups(found: Grouping) -> None:
    images = found.session.reservoir.images
    row = int((~images.known).nonzero()[0])
    print("why is an image unknown?\n")
    print("\n".join(explain(found.session, images.features[row], key=images.keys[row]).lines()))
    print(f"\nwhat are the {found.unknown} unknown images among the first {NUMBERS.first:,}?\n")
    for one in found.groups[:8]:
        print("\n".join(group_lines(one)))
    print(
        f"\n{len(found.groups)} groups hold {found.grouped} of them; the large ones become names: the best suggestion,"
    )
    print(f"or, under {100 * NUMBERS.weak:.0f} %, what somebody who sees the pictures writes: {', '.join(WRITTEN)}\n")


def _promote_large_groups(found: Grouping, *, as_json: bool) -> tuple[Session, dict[str, int]]:
    """The session after the large groups have become names, and the number of the group of each name."""
    session, words, written = found.session, embedded.vocabulary(), iter(WRITTEN)
    names: dict[str, int] = {}
    for one in found.groups:
        word = _best_word(one, session) or next(written, None)
        if one.size < NUMBERS.large or one.looks_known or word is None:
            continue
        done = promote(session, one.number, word, words.vectors[words.words.index(word)])
        session, names[word] = done.session, one.number
        if not as_json:
            print_edit(done.record, as_json=False)
    return session, names


def _best_word(one: Group, session: Session) -> str | None:
    """The best suggestion, None where its share is too small: a person has to look at the pictures."""
    taken = session.detector.labels.names
    return next((word.word for word in one.suggestions if word.word not in taken and word.share >= NUMBERS.weak), None)


def _new_name_rows(pack: embedded.Pack, before: Session, after: Session, names: dict[str, int]) -> list[dict[str, Any]]:
    """For each new name which of the later images got it, by what they show; old names in one row."""
    z, keys = pack.z[NUMBERS.first :], pack.keys[NUMBERS.first :]
    kinds = [key.rsplit("/", 1)[0] for key in keys]
    verdicts = after.observe(z, keys)
    rows = []
    for name in names:
        shown = Counter(kind for kind, verdict in zip(kinds, verdicts, strict=True) if verdict.name == name)
        rows.append({"name": name, "images": shown.total(), "shown": dict(shown.most_common(5))})
    was = before.at(before.snapshot).observe(z, keys)
    old = [kind in pack.space.names for kind in kinds]
    right = [
        sum(is_old and one.name == kind for one, kind, is_old in zip(some, kinds, old, strict=True))
        for some in (was, verdicts)
    ]
    return [*rows, {"name": "the animals", "images": sum(old), "shown": {"right before": right[0], "after": right[1]}}]
