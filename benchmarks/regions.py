"""Composed scenes: photos pasted on soft backgrounds, known and unknown mixed, judged by box, by window and whole.

    python benchmarks/regions.py ../shared/images/eval-imagenet-val5.tar             # six jobs; an hour on two cores
    python benchmarks/regions.py ARCHIVE --jobs 1 --scenes 20 --rows rows.jsonl
    python benchmarks/regions.py ARCHIVE --speed                                     # seconds

A job takes a dozen everyday names. Half of its scenes hold two to six known photos; in the others one of them is
unknown, of a family of the names (near) or not (far). Boxes: AUROC of margins and verdicts of every object, as the
photo alone and as it is cut from its scene with a margin of 0 and of 10 %. Scenes: how many with an unknown object have
a number below those of 95 % of the known ones, and in how many the part with the lowest margin holds most of it.
"""

from __future__ import annotations

import functools
import random
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from PIL import Image, ImageFilter
from torch import Tensor

from first_job import families, offline, photos_by_class
from unseen import LabelSpace, Session
from unseen.features import FeatureCache, stream_images
from unseen.features.encoding import encode_ahead, make_reader
from unseen.images import Entry, find_images, read_entries, read_images
from unseen.images.regions import Region, SharedPhoto, cut_windows, squeezed, windows
from unseen_bench.methods.zeroshot.glmcm import GLMCM
from unseen_bench.metrics import auroc
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean

SIZE, SIDE, GRID = (384, 288), 96, 2
CUT = 200  # pixels of the boxes whose speed is measured
NAMES = (
    "golden retriever, pizza, violin, sports car, espresso, castle, school bus, tiger, strawberry, laptop, teapot, "
    "zebra",
    "tabby, Labrador retriever, cheeseburger, acoustic guitar, mountain bike, banana, African elephant, airliner, "
    "desktop computer, coffee mug, lemon, ice bear",
    "lion, ice cream, grand piano, fire engine, mushroom, beer bottle, soccer ball, giant panda, umbrella, mailbox, "
    "flamingo, beagle",
)
KINDS = ("known", "near", "far")
OBJECTS = ("the photo alone", "its box, margin 0", "its box, margin 10 %")
SCENES = ("whole photo", "GL-MCM", "exact boxes", "windows cut out", "windows in one pass")


class Placed(NamedTuple):
    """A photo in a scene."""

    photo: Path
    kind: str
    box: tuple[int, int, int, int]


class Scene(NamedTuple):
    """A composed scene, with the kind of its unknown object."""

    path: Path
    kind: str
    objects: Sequence[Placed]


class Job(NamedTuple):
    """The names and the scenes of a job, and how it is encoded."""

    space: LabelSpace
    scenes: Sequence[Scene]
    encode: Callable[[list[Entry]], Tensor]


def main() -> None:
    parser = command.parser(__doc__, resumes=True)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--jobs", type=int, default=6, help="how many (6)")
    parser.add_argument("--first-job", type=int, default=0, help="where to begin (0)")
    parser.add_argument("--scenes", type=int, default=80, help="of a job (80)")
    parser.add_argument("--work", type=Path, default=Path("build/regions"), help="scenes and vectors are kept here")
    parser.add_argument("--ways", nargs="+", choices=(*OBJECTS, *SCENES), default=[*OBJECTS, *SCENES])
    parser.add_argument("--speed", action="store_true", help="images per second of boxes beside photos of their size")
    parser.add_argument("--rounds", type=int, default=5, help="of --speed (5)")
    arguments = command.parse(parser)
    if arguments.speed:
        command.show(speed(arguments), arguments)
    else:
        command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: Namespace) -> Iterator[Case]:
    for number in range(arguments.first_job, arguments.first_job + arguments.jobs):
        make = functools.partial(job, number, arguments.archive, arguments.work, arguments.scenes)
        for way in arguments.ways:
            judge = judge_objects if way in OBJECTS else judge_scenes
            yield Case({"job": number, "way": way}, functools.partial(judge, make, way))


@functools.lru_cache(maxsize=1)
def job(number: int, archive: Path, work: Path, count: int) -> Job:
    """The job of this number; its scenes are composed again, always the same ones."""
    draw, photos, of = random.Random(number), photos_by_class(archive, work), families(archive, work)
    names = NAMES[number % len(NAMES)].split(", ")
    related = {one for members in of.values() if set(members) & set(names) for one in members} - set(names)
    others = {"near": related, "far": set(photos) - related - set(names)}
    known = [photo for name in names for photo in photos[name]]
    backgrounds = sorted(photo for group in photos.values() for photo in group)
    scenes = []
    for place in range(count):
        kind = KINDS[0] if place % 2 == 0 else KINDS[1 + place // 2 % 2]
        chosen = [(photo, "known") for photo in draw.sample(known, draw.randint(2, 6))]
        if kind != "known":
            chosen[0] = (draw.choice(photos[draw.choice(sorted(others[kind]))]), kind)
        path = work / f"scenes{number}" / f"{place:03d}.png"
        scenes.append(Scene(path, kind, compose(chosen, draw.choice(backgrounds), draw, path)))
    encoder = offline()
    cache = FeatureCache(work / "vectors", encoder)

    def encode(entries: list[Entry]) -> Tensor:
        return torch.cat([z for _, z in stream_images(entries, encoder, cache)])

    return Job(LabelSpace.build(names, encoder), scenes, encode)


def compose(chosen: list[tuple[Path, str]], background: Path, draw: random.Random, path: Path) -> list[Placed]:
    """Paste photos at places that do not overlap, on a blurred one, and write the scene."""
    corners: list[tuple[int, int]] = []
    while len(corners) < len(chosen):
        free = [(draw.randint(0, SIZE[0] - SIDE), draw.randint(0, SIZE[1] - SIDE)) for _ in range(300)]
        fits = (one for one in free if all(max(abs(one[i] - other[i]) for i in (0, 1)) >= SIDE for other in corners))
        found = next(fits, None)
        corners = [*corners, found] if found else []
    scene = Image.open(background).convert("RGB").resize(SIZE).filter(ImageFilter.GaussianBlur(24))
    for (photo, _), corner in zip(chosen, corners, strict=True):
        scene.paste(Image.open(photo).convert("RGB").resize((SIDE, SIDE)), corner)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():  # its vectors are known by its time of change
        scene.save(path)
    boxes = ((x, y, x + SIDE, y + SIDE) for x, y in corners)
    return [Placed(photo, kind, box) for (photo, kind), box in zip(chosen, boxes, strict=True)]


def cut(scene: Scene, regions: Sequence[Region], pad: float) -> list[Entry]:
    """Regions of a scene as entries."""
    (photo,) = find_images(scene.path)
    keyed = {f"{scene.path}#{number}": region for number, region in enumerate(regions, 1)}
    return list(SharedPhoto(photo, keyed, pad).entries())


def judge_objects(make: Callable[[], Job], way: str) -> Row:
    """AUROC and verdicts of all objects as one stream, judged at its end."""
    space, scenes, encode = make()
    objects = [one for scene in scenes for one in scene.objects]
    if way == OBJECTS[0]:
        z = encode([entry for one in objects for entry in find_images([one.photo])])
    else:
        pad = 0.0 if way == OBJECTS[1] else 0.1
        z = encode([entry for s in scenes for entry in cut(s, [Region(one.box) for one in s.objects], pad)])
    session = Session(space)
    start = session.snapshot
    session.observe(z)
    verdicts = session.rejudge(z, since=start)
    of = {kind: torch.tensor([one.kind == kind for one in objects]) for kind in KINDS}
    row = {f"auroc_{kind}": 100 * auroc(*two(verdicts.margin, of["known"], of[kind])) for kind in KINDS[1:]}
    rejected = {f"rejected_{kind}": 100 * float(verdicts.unknown[of[kind]].float().mean()) for kind in KINDS}
    return row | {"kept": 100 - rejected.pop("rejected_known")} | rejected


def judge_scenes(make: Callable[[], Job], way: str) -> Row:
    """How many scenes with an unknown object are told from known ones, and whether its place is."""
    space, scenes, encode = make()
    number, box = numbers(way, space, scenes, encode)
    of = {kind: torch.tensor([scene.kind == kind for scene in scenes]) for kind in KINDS}
    known = number[of["known"]].sort().values
    least = known[len(known) // 20]  # what 95 % of the known scenes reach
    row: dict[str, Any] = {}
    for kind in KINDS[1:]:
        row[f"auroc_{kind}"] = 100 * auroc(*two(number, of["known"], of[kind]))
        row[f"found_{kind}"] = 100 * float((number < least)[of[kind]].float().mean())
        places = [holds(box[i], scene) for i, scene in enumerate(scenes) if scene.kind == kind] if box else []
        row[f"place_{kind}"] = 100 * sum(places) / len(places) if places else float("nan")
    return row


def numbers(way: str, space: LabelSpace, scenes: Sequence[Scene], encode: Any) -> tuple[Tensor, list[Region]]:
    """A number for each scene, low where something is unknown, and the part that it is of."""
    session, paths = Session(space), [str(scene.path) for scene in scenes]
    if way == "whole photo":
        return session.score(encode(list(find_images(paths)))).margin, []
    if way == "exact boxes":
        parts = [[Region(one.box) for one in scene.objects] for scene in scenes]
        z = encode([entry for scene, some in zip(scenes, parts, strict=True) for entry in cut(scene, some, 0.1)])
        margins = session.score(z).margin.split([len(some) for some in parts])
        lowest = [some[int(margin.argmin())] for some, margin in zip(parts, margins, strict=True)]
        return torch.stack([margin.min() for margin in margins]), lowest
    every, encoder = windows(GRID), cast(Any, offline())
    batches = [batch.images for batch in read_images(paths, size=16)]
    if way == "GL-MCM":
        parts_of = torch.cat([torch.cat([encoder.images(b)[:, None], encoder.patches(b)], 1) for b in batches])
        return GLMCM(space).read(None, parts_of).score, []
    if way == "windows cut out":
        photos = [photo for batch in batches for photo in batch]
        z = torch.stack([encoder.images(list(map(squeezed, cut_windows(photo, GRID)))) for photo in photos])
    else:
        z = torch.cat([encoder.windows(b, [one.box for one in every]) for b in batches])
    margin = session.score(z.flatten(0, 1)).margin.unflatten(0, (len(scenes), -1))
    return margin.amin(1), [every[place] for place in margin.argmin(1).tolist()]


def holds(region: Region, scene: Scene) -> bool:
    """Whether a part of a scene holds more than half of its unknown object."""
    left, top, right, bottom = region.pixels(SIZE)
    x, y, x2, y2 = next(one.box for one in scene.objects if one.kind != "known")
    return max(0, min(right, x2) - max(left, x)) * max(0, min(bottom, y2) - max(top, y)) > SIDE * SIDE / 2


def speed(arguments: Namespace) -> Iterator[Row]:
    """Files to vectors: boxes of photos, beside JPEG files of what they show, in alternation; the best round counts."""
    draw, reader = random.Random(0), make_reader(offline())
    photos = [photo for group in photos_by_class(arguments.archive, arguments.work).values() for photo in group]
    boxes: list[Entry] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, photo in enumerate(draw.sample(photos, 8)):
            file = Path(folder) / f"{number}.jpg"
            Image.open(photo).convert("RGB").resize((640, 480)).save(file, quality=90)
            corners = [(draw.randint(0, 640 - CUT), draw.randint(0, 480 - CUT)) for _ in range(6)]
            regions = {f"{file}#{i}": Region((x, y, x + CUT, y + CUT)) for i, (x, y) in enumerate(corners)}
            boxes += SharedPhoto(find_images(file)[0], regions, pad=0.0).entries()
        plain = Path(folder) / "plain"
        plain.mkdir()
        for batch in read_entries(boxes, size=8):
            for image in batch:
                image.pixels.save(plain / f"{Path(image.path).name}.jpg", quality=90)
        some = {f"plain photos of {CUT} pixels": list(find_images(plain)), "boxes of that size, six a photo": boxes}

        def encode(entries: list[Entry]) -> None:
            sum(len(batch.new) for batch in encode_ahead(entries, reader, size=32))

        works = {name: functools.partial(encode, entries) for name, entries in some.items()}
        _, *rounds = zip(*command.alternating_seconds(works, rounds=arguments.rounds + 1).values(), strict=True)
    best = [len(boxes) / min(times) for times in zip(*rounds, strict=True)]
    for name, rate in zip(works, best, strict=True):
        yield {"what": name, "images/s": rate, "of plain photos": rate / best[0]}


def two(values: Tensor, *masks: Tensor) -> list[Tensor]:
    return [values[mask] for mask in masks]


def table(rows: list[Row]) -> Iterator[str]:
    """A table for objects and one for scenes; what is not named near or far is the mean of both."""
    for ways, fields in ((OBJECTS, ("kept", "rejected")), (SCENES, ("found", "place"))):
        groups = {way: group for (way,), group in grouped(rows, "way").items() if way in ways}
        if not groups:
            continue
        lines = [
            (way, *(shown(share(group, field)) for field in ("auroc_near", "auroc_far", *fields)))
            for way, group in groups.items()
        ]
        yield from markdown_table(("", "AUROC near", "far", *fields), lines)
        yield ""


def shown(value: float) -> str:
    return "" if value != value else f"{value:.1f}"


def share(group: list[Row], field: str) -> float:
    """The mean of a field, or of its two kinds."""
    kinds = [field] if field in group[0] else [f"{field}_{kind}" for kind in KINDS[1:]]
    return sum(mean(group, kind) for kind in kinds) / len(kinds)


if __name__ == "__main__":
    main()
