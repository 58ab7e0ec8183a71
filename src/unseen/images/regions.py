"""Parts of photos as images of their own: boxes that a detector has drawn, or overlapping windows.

A region is an entry like a file: with a key of its own, `photo#number`, read by any thread, skipped with a reason. Its
photo is decoded once for all of its regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from unseen.errors import DataError, ImageError
from unseen.images.decode import IMAGE_SUFFIXES, check_size
from unseen.images.entry import Batch, Entry, Image, Skipped
from unseen.images.sources import FoundEntries, find_images

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class RegionBounds:
    """What a region must be to be judged."""

    smallest: int = 8  # pixels of the shorter side of a box: less shows nothing
    most: int = 1000  # regions of one photo
    pad: float = 0.1  # margin on each side, as a share of the longer side of a box


BOUNDS = RegionBounds()


class Region(NamedTuple):
    """A box on an upright photo, and what a detector has called it; no part of that reaches a verdict.

    >>> Region((0.0, 0.5, 0.5, 1.0), in_shares=True).pixels((80, 60))
    (0.0, 30.0, 40.0, 60.0)
    """

    box: Box  # in pixels
    label: str | None = None
    score: float | None = None
    in_shares: bool = False  # the box is in shares of width and height instead

    def pixels(self, size: tuple[int, int]) -> Box:
        """The box in pixels of a photo of this size, as far as it lies on it."""
        width, height = size
        across, down = (width, height) if self.in_shares else (1, 1)
        left, top, right, bottom = self.box
        x, y = (left * across, right * across), (top * down, bottom * down)
        return max(0.0, x[0]), max(0.0, y[0]), min(float(width), x[1]), min(float(height), y[1])


def cut_box(region: Region, size: tuple[int, int], pad: float) -> tuple[int, int, int, int]:
    """What is cut for a region: its box and a margin, as square as the photo allows; a reason where nothing can be.

    A square, because encoders see only the middle of what is longer than wide.

    >>> cut_box(Region((40, 20, 60, 60)), (100, 100), 0.1)
    (26, 16, 74, 64)
    """
    left, top, right, bottom = region.box
    if not (right > left and bottom > top):
        raise ImageError(f"empty box: {_shown(region.box)}")
    left, top, right, bottom = region.pixels(size)
    if not (right > left and bottom > top):
        raise ImageError(f"box outside the photo of {size[0]} x {size[1]} pixels: {_shown(region.box)}")
    if min(right - left, bottom - top) < BOUNDS.smallest:
        shown = f"{right - left:.0f} x {bottom - top:.0f}"
        raise ImageError(f"box too small: {shown} pixels, at least {BOUNDS.smallest} wanted on either side")
    half, x, y = (0.5 + pad) * max(right - left, bottom - top), (left + right) / 2, (top + bottom) / 2
    most_x, most_y = size
    return max(0, round(x - half)), max(0, round(y - half)), min(most_x, round(x + half)), min(most_y, round(y + half))


def _shown(box: Box) -> str:
    return " ".join(f"{value:g}" for value in box)


def windows(grid: int) -> list[Region]:
    """Overlapping windows, each a `grid`-th of the photo in width and height, half a window apart.

    >>> len(windows(2)), windows(2)[1].box
    (9, (0.25, 0.0, 0.75, 0.5))
    """
    starts = [step / (2 * grid) for step in range(2 * grid - 1)]
    return [Region((x, y, x + 1 / grid, y + 1 / grid), in_shares=True) for y in starts for x in starts]


def cut_windows(photo: Image, grid: int) -> list[Image]:
    """The windows of a photo."""
    corners = (map(round, one.pixels(photo.pixels.size)) for one in windows(grid))
    boxes = [(x, y, max(x2, x + 1), max(y2, y + 1)) for x, y, x2, y2 in corners]
    return [Image(f"{photo.path}#{number}", photo.pixels.crop(box)) for number, box in enumerate(boxes, 1)]


def squeezed(image: Image) -> Image:
    """An image as a square with all that it shows: encoders see only the middle of what is longer than wide."""
    side = min(image.pixels.size)
    return replace(image, pixels=image.pixels.resize((side, side)))


@dataclass
class SharedPhoto:
    """A photo that several regions, by their keys, are cut from: decoded for the first, gone with the last."""

    photo: Entry
    regions: Mapping[str, Region]
    pad: float = BOUNDS.pad
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the photos that were decoded
    lock: Any = field(default_factory=Lock, repr=False)
    held: Image | Skipped | None = None
    waiting: int = 0  # regions that have not been cut yet

    def entries(self) -> Iterator[Entry]:
        """Yield the regions in order as entries."""
        for key, region in self.regions.items():
            identity = f"{self.photo.identity}:{_shown(region.box)}:{self.pad:g}"
            yield Entry(key, identity, partial(self.cut, key))

    def cut(self, key: str) -> Picture:
        """The picture of a region."""
        photo = self._decoded()
        if isinstance(photo, Skipped):
            raise ImageError(photo.reason)
        if split_key(key)[1] > BOUNDS.most:
            raise ImageError(f"too many boxes: at most {BOUNDS.most:,} of a photo are judged")
        box = cut_box(self.regions[key], photo.pixels.size, self.pad)
        check_size(box[2] - box[0], box[3] - box[1])
        return photo.pixels.crop(box)

    def _decoded(self) -> Image | Skipped:
        with self.lock:
            if self.held is None:
                self.held, self.waiting = self.photo.read(), len(self.regions)
                if isinstance(self.held, Image):
                    self.sizes[self.photo.path] = self.held.pixels.size
            photo, self.waiting = self.held, self.waiting - 1
            self.held = photo if self.waiting else None
            return photo


@dataclass
class RegionEntries:
    """The regions of some photos as entries of a stream, photo after photo."""

    photos: FoundEntries
    regions: Mapping[int, Sequence[Region]]  # by the place of the photo
    pad: float = BOUNDS.pad
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # width and height of photos, once decoded

    def __post_init__(self) -> None:
        """Find the photos that have regions by their keys."""
        names = list(self.photos.keys)
        self.places = {names[place]: place for place in self.regions}

    def __len__(self) -> int:
        return sum(map(len, self.regions.values()))

    def __iter__(self) -> Iterator[Entry]:
        for name, place in self.places.items():
            regions = {f"{name}#{number}": region for number, region in enumerate(self.regions[place], 1)}
            yield from SharedPhoto(self.photos[place], regions, self.pad, self.sizes).entries()

    @property
    def keys(self) -> Iterator[str]:
        """What the regions are called."""
        return (f"{name}#{i}" for name, place in self.places.items() for i in range(1, len(self.regions[place]) + 1))

    @property
    def others(self) -> int:
        """How many files beside the photos are none."""
        return self.photos.others

    def at(self, key: str) -> tuple[str, Region]:
        """The photo and the region of a key; the box in pixels, where the photo has been decoded."""
        name, number = split_key(key)
        region = self.regions[self.places[name]][number - 1]
        if size := self.sizes.get(name):
            region = region._replace(box=region.pixels(size), in_shares=False)
        return name, region


def split_key(key: str) -> tuple[str, int]:
    """The photo and the number of a region by its key; 0 for what is no region.

    >>> split_key("photos/a.jpg#3"), split_key("photos/a.jpg")
    (('photos/a.jpg', 3), ('photos/a.jpg', 0))
    """
    photo, mark, number = key.rpartition("#")
    return (photo, int(number)) if mark and number.isdecimal() else (key, 0)


def region_entries(
    photos: Any, boxes: Mapping[str, Sequence[Region]], *, pad: float = BOUNDS.pad
) -> tuple[RegionEntries, dict[str, str]]:
    """The regions of the photos of a source, and what each photo is called in `boxes`."""
    found = still_photos(photos)
    names = match_photos(keys := list(found.keys), list(boxes))
    if not names:
        first = next(iter(boxes), "none at all")
        raise DataError(f"expected boxes on these photos, got those of others (first: {first}); pass their folder")
    regions = {place: boxes[name] for place, name in names.items()}
    return RegionEntries(found, regions, pad), {keys[place]: name for place, name in names.items()}


def entries_of(regions: Mapping[str, tuple[str, Region]]) -> Iterator[Entry]:
    """Yield regions, by key with their photo, as entries, where the photo is a file here."""
    photos: dict[str, dict[str, Region]] = {}
    for key, (photo, region) in regions.items():
        photos.setdefault(photo, {})[key] = region
    for photo, some in photos.items():
        if Path(photo).is_file():
            yield from SharedPhoto(still_photos(photo)[0], some).entries()


def window_entries(photos: Any, grid: int) -> RegionEntries:
    """The windows of every photo of a source."""
    found, every = still_photos(photos), windows(grid)
    return RegionEntries(found, dict.fromkeys(range(len(found)), every), pad=0.0)


def still_photos(photos: Any) -> FoundEntries:
    """The photos of a source; a video is refused, whose frames cannot be counted before they are decoded."""
    found = find_images(photos)
    if not isinstance(found, FoundEntries):
        raise DataError("expected photos to cut regions from, got a video or images in memory; see unseen.read_regions")
    return found


def match_photos(photos: Sequence[str], names: Sequence[str]) -> dict[int, str]:
    """Which name in a file of boxes means which photo, by the place of the photo.

    The whole of the shorter path must end the longer one; where no such name is found, one that is alone with its
    last part on either side will do, because data sets are moved.

    >>> match_photos(["p/a/1.jpg", "p/b/1.jpg", "p/2.jpg"], ["a/1.jpg", "b/1", "elsewhere/2.jpg"])
    {0: 'a/1.jpg', 1: 'b/1', 2: 'elsewhere/2.jpg'}
    """
    by_stem: dict[str, list[str]] = {}
    for name in names:
        by_stem.setdefault(_parts(name)[-1][0], []).append(name)
    count: dict[str, int] = {}
    for photo in photos:
        stem = _parts(photo)[-1][0]
        count[stem] = count.get(stem, 0) + 1
    found: dict[int, str] = {}
    for place, photo in enumerate(photos):
        parts = _parts(photo)
        near = [name for name in by_stem.get(parts[-1][0], ()) if _is_same(_parts(name)[-1:], parts[-1:])]
        whole = [name for name in near if _is_same(_parts(name), parts)]
        if whole:
            found[place] = max(whole, key=len)
        elif len(near) == 1 == count[parts[-1][0]]:
            found[place] = near[0]
    return found


def _parts(path: str) -> list[tuple[str, str]]:
    """The parts of a path, each as stem and suffix; a key inside an archive is a path as well."""
    parts = [one for one in path.replace("\\", "/").split("/") if one not in ("", ".")] or [path]
    last = PurePath(parts[-1])
    stem, suffix = (last.stem, last.suffix) if last.suffix.lower() in IMAGE_SUFFIXES else (last.name, "")
    return [*((one, "") for one in parts[:-1]), (stem, suffix.lower())]


def _is_same(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> bool:
    """Whether one path ends the other, a missing suffix standing for any."""
    (stem, suffix), (stem2, suffix2) = one[-1], other[-1]
    depth = min(len(one), len(other)) - 1
    same_file = stem == stem2 and (suffix == suffix2 or not suffix or not suffix2)
    return same_file and (not depth or one[-1 - depth : -1] == other[-1 - depth : -1])


def read_regions(
    photo: Any, detections: Any, *, pad: float = BOUNDS.pad, names: Mapping[int, str] | Sequence[str] = ()
) -> Batch:
    """The regions of one photo as images, in the order of the boxes; what cannot be cut is among `rows`, skipped.

    `detections` may be supervision's Detections, one of ultralytics' results, torchvision's dict, or boxes [n, 4] as
    left, top, right, bottom in pixels. `names` are those of class numbers, where these are all a detector gives.

    >>> import numpy as np
    >>> regions = read_regions(np.zeros((60, 80, 3), np.uint8), [[10, 10, 50, 40], [70, 50, 90, 52]])
    >>> [image.path for image in regions], regions.skipped[0].reason
    (['#1'], 'box too small: 10 x 2 pixels, at least 8 wanted on either side')
    """
    from unseen.images.inputs import in_memory_entry  # late: it imports torch

    entry = still_photos(photo)[0] if isinstance(photo, str | Path) else in_memory_entry(0, photo)
    name = entry.path if isinstance(photo, str | Path) else entry.path.removesuffix("#0")
    regions = {f"{name}#{number}": one for number, one in enumerate(as_regions(detections, names), 1)}
    return Batch(tuple(one.read() for one in SharedPhoto(entry, regions, pad).entries()))


def as_regions(detections: Any, names: Mapping[int, str] | Sequence[str] = ()) -> list[Region]:
    """What a detector has found in one photo as regions."""
    import numpy as np

    def rows(value: Any) -> Any:
        return np.asarray(value.cpu() if hasattr(value, "cpu") else value, dtype=float)

    boxes, labels, scores = detections, None, None
    if isinstance(detections, Mapping):  # torchvision
        boxes, labels, scores = (detections.get(one) for one in ("boxes", "labels", "scores"))
    elif hasattr(detections, "xyxy"):  # supervision
        boxes, scores = detections.xyxy, detections.confidence
        labels = detections.data.get("class_name", detections.class_id)
    elif hasattr(detections, "boxes"):  # ultralytics
        boxes, labels, scores = detections.boxes.xyxy, detections.boxes.cls, detections.boxes.conf
        names = names or detections.names
    xyxy = rows(boxes).reshape(-1, 4) if len(boxes) else np.empty((0, 4))
    words = [None] * len(xyxy) if labels is None else [_word(one, names) for one in labels]
    sure = [None] * len(xyxy) if scores is None else rows(scores).tolist()
    return [Region(tuple(box), *rest) for box, *rest in zip(xyxy.tolist(), words, sure, strict=True)]


def _word(label: Any, names: Mapping[int, str] | Sequence[str]) -> str | None:
    """The name of a class that a detector gives by name or by number; None where nothing has its name."""
    if isinstance(label, str):
        return label
    try:
        return names[int(label)]
    except (LookupError, TypeError, ValueError):
        return None
