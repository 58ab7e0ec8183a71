"""Hide some classes, stream, group what was rejected, promote by the best suggestion: are they found, named, learned?

    python benchmarks/discover.py ../shared/clip-b16                 # the table of docs/results.md

imagenet200 (5 images per class) and Tiny-ImageNet (50) have real CLIP text: 1,253 words, of which those that are not
known names are what groups may be called by; hidden names are not among the negatives. CIFAR-100 (100) goes through the
offline text tower, and groups may be called by 20,192 words of WordNet and the hidden names. Groups are judged at the
end of the stream. For promotion the stream is stopped half-way: each hidden class that most images of some group belong
to is promoted under the best suggestion of its largest group, right or wrong, and the second half is judged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from unseen import LabelSpace, Session, load_encoder
from unseen.cli.spaces import load_vocabulary
from unseen.discover import Group, Vocabulary, group, promote
from unseen.discover.clustering import average_linkage, describe_images
from unseen.features import load_features
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean

HIDDEN = (5, 20, 50)
SETS = ("imagenet200", "tiny-imagenet", "cifar100")
KEEP = 20_000  # every unknown image: the benchmark is of groups, not of the sample
PURE, HALF = 0.8, 0.5


@dataclass(frozen=True)
class Images:
    """Images of some classes with a name and a text vector for each class, and other words."""

    z: Tensor
    label: Tensor
    names: tuple[str, ...]
    text: Tensor
    words: Vocabulary  # besides the names
    negatives: LabelSpace | None = None  # where they come from, if not from the other words


@cache
def images(folder: Path, which: str) -> Images:
    """A set by name."""
    if which == "cifar100":
        return cifar100(folder)
    text, other = (load_features(folder / f"text-{name}.safetensors") for name in ("imagenet1k", "other-names"))
    known = json.loads((folder / "suites.json").read_text())["imagenet200"]["id_classes"]
    found = load_features(folder / f"images-{'imagenet_val5' if which == 'imagenet200' else 'tin_val'}.safetensors")
    column = [str(row) for row in range(1000)] if which == "imagenet200" else list(text.column("wnids"))
    rows = torch.tensor([column.index(name) for name in found.classes])[found.true_labels]
    classes = known if which == "imagenet200" else sorted(set(rows.tolist()))
    place = {row: number for number, row in enumerate(classes)}
    label = torch.tensor([place.get(row, -1) for row in rows.tolist()])
    rest = [row for row in range(1000) if row not in place]
    words = Vocabulary((*(text.keys[row] for row in rest), *other.keys), torch.cat([text.z[rest], other.z]))
    names = tuple(text.keys[row] for row in classes)
    return Images(found.z[label >= 0], label[label >= 0], names, text.z[classes], words.without(names))


def cifar100(folder: Path) -> Images:
    """CIFAR-100 with names, negatives and words of the offline text tower."""
    found = load_features(folder / "images-cifar100.safetensors")
    names = tuple(name.replace("_", " ") for name in found.classes)
    space = LabelSpace.build(names, load_encoder("offline"))
    words = load_vocabulary("wordnet", space).without(names)
    return Images(found.z, found.true_labels, names, space.id_anchors, words, space)


@dataclass(frozen=True)
class Stream:
    """Images in one random order, some classes hidden."""

    z: Tensor
    label: Tensor
    hidden: frozenset[int]
    space: LabelSpace
    words: Vocabulary  # what groups may be called by: the hidden names are among them
    names: tuple[str, ...]

    @classmethod
    def of(cls, found: Images, hidden: int, seed: int) -> Stream:
        """The stream of a seed."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(found.names), generator=generator).tolist()
        gone, known = order[:hidden], order[hidden:]
        source = found.negatives
        negatives = (source.negatives, source.ood_anchors) if source else (found.words.words, found.words.vectors)
        space = LabelSpace(tuple(found.names[one] for one in known), negatives[0], found.text[known], negatives[1])
        words = Vocabulary(
            (*(found.names[one] for one in gone), *found.words.words),
            torch.cat([found.text[gone], found.words.vectors]),
        )
        arrival = torch.randperm(len(found.z), generator=generator)
        return cls(found.z[arrival], found.label[arrival], frozenset(gone), space, words, found.names)

    def observed(self, count: int) -> Session:
        """A session after the first `count` images."""
        session = Session(self.space, keep=KEEP)
        session.observe(self.z[:count], [str(place) for place in range(count)])
        return session


def measure(folder: Path, which: str, hidden: int, seed: int) -> Row:
    """Every figure of one stream."""
    stream = Stream.of(images(folder, which), hidden, seed)
    return judge_groups(stream) | judge_promotion(stream)


def judge_groups(stream: Stream) -> Row:
    """How groups of the rejected images agree with the truth, beside other ways to cluster them."""
    session = stream.observed(len(stream.z))
    kept = session.reservoir.images
    unknown = kept.select(~kept.known)
    truth = stream.label[unknown.place].numpy()
    counts, total = Counter(truth.tolist()), Counter(stream.label.tolist())
    vectors = torch.cat([stream.space.id_anchors, stream.words.vectors])
    own = average_linkage(describe_images(unknown.features, kept.features.mean(0), vectors)).numpy()
    raw = unknown.features.numpy()
    means = KMeans(len(counts), n_init=2, random_state=0).fit_predict(raw)
    found = group(session, stream.words).groups
    pure = [(one, main_class(stream, one)) for one in found if main_class(stream, one)[1] > PURE]
    pure = [(one, main) for one, main in pure if main[0] in stream.hidden]
    right = [one.suggestions[0].word == stream.names[main[0]] for one, main in pure if one.suggestions]
    got = {main[0] for one, main in pure if main[1] * one.size >= HALF * total[main[0]]}
    return {
        "unknown": len(unknown),
        "rejected": sum(counts[one] for one in stream.hidden) / sum(total[one] for one in stream.hidden),
        "ami": adjusted_mutual_info_score(truth, own),
        "ami_kmeans": adjusted_mutual_info_score(truth, means),
        "groups": len(found),
        "found": len(got) / len(stream.hidden),
        "pure": len(pure),
        "first": float(np.mean(right)) if right else float("nan"),
    }


def main_class(stream: Stream, one: Group) -> tuple[int, float]:
    """The class that most images of a group have, and their share."""
    ((label, count),) = Counter(int(stream.label[int(key)]) for key in one.keys).most_common(1)
    return label, count / one.size


def judge_promotion(stream: Stream) -> Row:
    """How well promoted classes and old ones are named in the second half of the stream."""
    half = len(stream.z) // 2
    found = group(stream.observed(half), stream.words)
    session = found.session
    places: dict[int, int] = {}
    for one in found.groups:
        main, share = main_class(stream, one)
        taken = session.detector.labels.names
        word = next((word.word for word in one.suggestions if word.word not in taken), None)
        if main in stream.hidden and main not in places and share > HALF and word:
            text = stream.words.vectors[stream.words.words.index(word)]
            session = promote(session, one.number, word, text).session
            places[main] = len(session.detector.labels.names) - 1
    z, label = stream.z[half:], stream.label[half:]
    place = {stream.names.index(name): row for row, name in enumerate(stream.space.names)} | places
    wanted = torch.tensor([place.get(one, -1) for one in label.tolist()])
    before, after = found.session.at(found.session.snapshot).observe(z), session.observe(z)
    new, old = torch.isin(label, torch.tensor(sorted(places))), ~torch.isin(label, torch.tensor(sorted(stream.hidden)))
    zero = zero_shot(stream, z) == label
    return {
        "promoted": len(places),
        "kept_named": share_of((after.label == wanted) & ~after.unknown, new),
        "zero_shot": share_of(zero, new),
        "old_before": share_of((before.label == wanted) & ~before.unknown, old),
        "old_after": share_of((after.label == wanted) & ~after.unknown, old),
    }


def zero_shot(stream: Stream, z: Tensor) -> Tensor:
    """The class of each image by the text of all names, hidden ones too, given from the start."""
    hidden = [stream.names[one] for one in sorted(stream.hidden)]
    vectors = dict(zip(stream.words.words, stream.words.vectors, strict=True))
    text = torch.cat([stream.space.id_anchors, torch.stack([vectors[name] for name in hidden])])
    names = [*stream.space.names, *hidden]
    return torch.tensor([stream.names.index(name) for name in names])[(z @ text.T).argmax(1)]


def share_of(right: Tensor, among: Tensor) -> float:
    return float(right[among].double().mean())


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=2)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    arguments = command.parse(parser)
    keys = [
        {"set": which, "hidden": hidden, "seed": seed}
        for which in arguments.sets
        for hidden in HIDDEN
        for seed in command.seeds(arguments)
    ]
    cases = [Case(key, partial(measure, arguments.folder, key["set"], key["hidden"], key["seed"])) for key in keys]
    command.run_and_print(cases, arguments, table)


GROUPS = {
    "hidden rejected": "rejected",
    "AMI": "ami",
    "k-means": "ami_kmeans",
    "found": "found",
    "named": "first",
}
PROMOTION = {
    "and kept": "kept_named",
    "zero-shot": "zero_shot",
    "old before": "old_before",
    "old after": "old_after",
}


def table(rows: list[Row]) -> Iterator[str]:
    """Yield two tables: groups and their names, then promotion. Shares in percent, means over seeds."""
    for count, columns in (("unknown", GROUPS), ("promoted", PROMOTION)):
        lines = (
            (
                f"{which}, {hidden}",
                f"{mean(some, count):,.1f}",
                *(f"{100 * mean(some, name):.1f}" for name in columns.values()),
            )
            for (which, hidden), some in grouped(rows, "set", "hidden").items()
        )
        yield from markdown_table(("set, hidden", count, *columns), lines)
        yield ""


if __name__ == "__main__":
    main()
