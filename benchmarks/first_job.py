"""A newcomer's job through the command line: a folder of 400 photos and twelve names, beside 16 everyday words.

    python benchmarks/first_job.py ../shared/images/eval-imagenet-val5.tar               # twelve jobs; minutes
    python benchmarks/first_job.py ARCHIVE --jobs 4 --first-job 100 --rows rows.jsonl

The archive has photos with the name of the class of each (key.jpg, key.txt). A job takes two names of each of six
families of WordNet, or, every third one, twelve of one family; 36 of its photos are known, 140 near (of the same
families), 224 far. Photos of the names that are left over are examples (two a class), calibration photos (24) and
corrections (ten verdicts near the threshold). Score: (kept + (near + far rejected) / 2) / 2 in percent, a doubtful
verdict counting one half on either side; kept and rejected count what is not, and what is, called unknown.
"""

from __future__ import annotations

import filecmp
import functools
import json
import random
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from typer.testing import CliRunner

from unseen import load_encoder
from unseen.cli import app
from unseen.encoders import Encoder
from unseen.features import FeatureCache, stream_images
from unseen.images import find_images
from unseen.labels.prompts import NICE
from unseen.odds import energy, logits
from unseen.verdicts import DOUBTFUL, UNKNOWN
from unseen.vocabulary import hierarchy
from unseen_bench.metrics import calibration_error, reliability
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean

FAMILIES = (
    *("dog", "cat", "bird", "reptile", "insect", "musical instrument", "fruit", "dish", "motor vehicle", "furniture"),
    *("garment", "tool", "building", "fish", "container", "monkey", "hoofed mammal", "ball", "electronic equipment"),
    *("weapon", "kitchen utensil", "boat"),
)
EVERYDAY = (
    *("animal", "food", "plant", "building", "person", "tool", "furniture", "clothing", "landscape", "machine", "toy"),
    *("text", "dog", "bird", "vehicle", "musical instrument"),
)
SIZES = {"known": 36, "near": 140, "far": 224}
WAYS = ("everyday words", "detect", "--live", "--examples", "--calibrate", "corrected")
SHOWN = ("score", "kept", "near", "far", "ece", "kept_first_128", "rejected_first_128")


class Job(NamedTuple):
    """Names, the photos of a folder by what they are, and photos of the names that are not in it."""

    names: tuple[str, ...]
    photos: dict[Path, str]  # known, near or far
    others: dict[Path, str]  # the name of each


def main() -> None:
    parser = command.parser(__doc__, features=False, resumes=True)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--jobs", type=int, default=12, help="how many (12)")
    parser.add_argument("--first-job", type=int, default=0, help="where to begin (0)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--work", type=Path, default=Path("build/first_job"), help="photos and vectors are kept here")
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: command.Arguments) -> Iterator[Case]:
    for number in range(arguments.first_job, arguments.first_job + arguments.jobs):
        for way in arguments.ways:
            call = functools.partial(measure, number, way, arguments.archive, arguments.work.resolve())
            yield Case({"job": number, "way": way}, call)


@functools.cache
def photos_by_class(archive: Path, work: Path) -> dict[str, list[Path]]:
    """The photos of the archive, unpacked once, by the name of their class."""
    folder = work / "photos"
    if not folder.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    found: dict[str, list[Path]] = {}
    for photo in sorted(folder.rglob("*.jpg")):
        found.setdefault(photo.with_suffix(".txt").read_text().strip(), []).append(photo)
    return found


@functools.cache
def families(archive: Path, work: Path) -> dict[str, list[str]]:
    """The classes of each family that has at least five."""
    nouns, classes = hierarchy(), list(photos_by_class(archive, work))
    places = nouns.find_all(classes)
    below = {family: nouns.below([nouns.find(family).place]) for family in FAMILIES}
    found = {f: [c for c in classes if c in places and places[c].place in below[f]] for f in FAMILIES}
    return {family: members for family, members in found.items() if len(members) >= 5}


@functools.lru_cache(maxsize=1)
def job(number: int, archive: Path, work: Path) -> Job:
    """The job of this number."""
    draw, photos, of = random.Random(number), photos_by_class(archive, work), families(archive, work)
    if number % 3 == 2:
        chosen = [draw.choice([family for family, members in of.items() if len(members) >= 15])]
        names = draw.sample(of[chosen[0]], min(12, len(of[chosen[0]]) // 3))
    else:
        chosen = draw.sample(sorted(of), 6)
        names = [name for family in chosen for name in draw.sample(of[family], 2)]
    names = list(dict.fromkeys(names))
    near = {name for family in chosen for name in of[family]} - set(names)
    own = [(photo, name) for name in names for photo in photos[name]]
    draw.shuffle(own)
    taken = dict.fromkeys((photo for photo, _ in own[: SIZES["known"]]), "known")
    for kind, classes in (("near", near), ("far", set(photos) - near - set(names))):
        rest = sorted(photo for name in classes for photo in photos[name])
        taken |= dict.fromkeys(draw.sample(rest, min(SIZES[kind], len(rest))), kind)
    return Job(tuple(names), taken, dict(own[SIZES["known"] :]))


def measure(number: int, way: str, archive: Path, work: Path) -> Row:
    """What one way to do a job gives."""
    task = job(number, archive, work)
    if way == "everyday words":
        return everyday_words(task, work / f"job{number}" / "photos", work / "vectors")
    folder = work / f"job{number}"  # one for all ways, so that its photos are encoded once
    photos, state = folder / "photos", without_states(folder) / "state.safetensors"
    copies = copied(task.photos, photos)
    names = [part for name in task.names for part in ("--label", name)]
    call = ["detect", str(photos), *names, "--state", str(state), "--json"]
    if way == "--live":
        call.append("--live")
    if way == "--examples":
        for name in task.names:
            two = [photo for photo, shown in task.others.items() if shown == name][:2]
            copied(dict.fromkeys(two), folder / "examples" / name)
        call += ["--examples", str(folder / "examples")]
    if way == "--calibrate":
        copied(dict.fromkeys(list(task.others)[:24]), folder / "known")
        call += ["--calibrate", str(folder / "known")]
    lines = run(call)
    if way == "corrected":
        corrected(lines, task, copies, state)
        lines = run([*call, "--no-learn"])
    return judged(lines, {str(copy): task.photos[photo] for photo, copy in copies.items()})


def corrected(lines: list[Row], task: Job, copies: dict[Path, Path], state: Path) -> None:
    """Correct the ten verdicts nearest to the threshold by what the photos show."""
    shown = {str(copy): photo.with_suffix(".txt").read_text().strip() for photo, copy in copies.items()}
    nearest = sorted(lines, key=lambda line: abs(line["margin"] - line["threshold"]))[:10]
    words = [(line["key"], shown[line["key"]] if shown[line["key"]] in task.names else UNKNOWN) for line in nearest]
    table = state.with_name("corrections.csv")
    table.write_text("key,name\n" + "".join(f'"{key}","{word}"\n' for key, word in words))
    run_text(["review", "--state", str(state), "--corrections", str(table)])


def everyday_words(task: Job, folder: Path, vectors: Path) -> Row:
    """A softmax over the names and 16 everyday words, known from one half on: ten lines of anyone's Python."""
    encoder, copies = offline(), copied(task.photos, folder)
    names, words = (NICE.encode(texts, encoder).cpu() for texts in (task.names, EVERYDAY))
    lines = []
    for batch, z in stream_images(find_images(str(folder)), encoder, FeatureCache(vectors, encoder)):
        odds = energy(logits(z, names, tau=0.01)) - energy(logits(z, words, tau=0.01))
        for image, value in zip(batch, odds, strict=True):
            verdict = "known" if value >= 0 else UNKNOWN
            lines.append({"key": image.path, "verdict": verdict, "p_known": float(torch.sigmoid(value))})
    return judged(lines, {str(copy): task.photos[photo] for photo, copy in copies.items()})


@functools.cache
def offline() -> Encoder:
    return load_encoder("offline")


def judged(lines: list[Row], truth: dict[str, str]) -> Row:
    """The figures of verdicts, in percent."""
    side = [truth[line["key"]] for line in lines]
    kept = [float(line["verdict"] != UNKNOWN) for line in lines]
    known = [0.5 if line["verdict"] == DOUBTFUL else value for line, value in zip(lines, kept, strict=True)]

    def share(values: list[float], kind: str, rows: slice = slice(None)) -> float:
        chosen = [value for value, one in zip(values[rows], side[rows], strict=True) if one == kind or one in kind]
        return 100 * sum(chosen) / len(chosen) if chosen else float("nan")

    p, is_known = torch.tensor([line["p_known"] for line in lines]), torch.tensor([one == "known" for one in side])
    rejected = (200 - share(known, "near") - share(known, "far")) / 2
    first = slice(0, 128)
    return {
        "score": (share(known, "known") + rejected) / 2,
        "kept": share(kept, "known"),
        "near": 100 - share(kept, "near"),
        "far": 100 - share(kept, "far"),
        "ece": 100 * calibration_error(reliability(p, is_known)),
        "kept_first_128": share(kept, "known", first),
        "rejected_first_128": 100 - share(kept, "near far", first),
    }


def copied(photos: Mapping[Path, object], folder: Path) -> dict[Path, Path]:
    """Copies of photos in a folder, in an order and by names that tell nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {photo: folder / f"{number:04d}.jpg" for number, photo in enumerate(sorted(photos, key=shuffle_key))}
    for photo, link in links.items():
        if not (link.exists() and filecmp.cmp(photo, link)):  # another draw may have left another photo
            shutil.copy2(photo, link)
    return links


def shuffle_key(photo: Path) -> float:
    """A random number that belongs to a photo."""
    return random.Random(photo.name).random()


def without_states(folder: Path) -> Path:
    """A folder in which no run has left a state; vectors of photos stay."""
    for file in folder.glob("state*"):
        if file.is_file():
            file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(call: list[str]) -> list[Row]:
    """The verdicts that a command prints."""
    return [line for line in map(json.loads, run_text(call).splitlines()) if "verdict" in line]


def run_text(call: list[str]) -> str:
    """What a command prints, as the command line would."""
    found = CliRunner().invoke(app, call)
    if found.exit_code:
        raise SystemExit(f"unseen {' '.join(call)} ended with {found.exit_code}: {found.output[-2000:]}")
    return found.stdout


def table(rows: list[Row]) -> Iterator[str]:
    base = {row["job"]: row["score"] for row in rows if row["way"] == "detect"}
    lines = []
    for (way,), group in grouped(rows, "way").items():
        worst = min((row["score"] - base.get(row["job"], float("nan")) for row in group), default=0.0)
        lines.append((way, *(f"{mean(group, field):.1f}" for field in SHOWN), f"{worst:+.1f}"))
    return markdown_table(("way", *SHOWN, "worst against detect"), lines)


if __name__ == "__main__":
    main()
