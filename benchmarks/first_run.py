"""What a user waits for: the command line, the first verdict, the words of the corpus, and how much memory it takes.

    python benchmarks/first_run.py start                       # seconds to the first line of some commands
    python benchmarks/first_run.py verdict                     # first verdict of `detect` on ten photos, and of an edit
    python benchmarks/first_run.py imports                     # what commands import, by package (`-X importtime`)
    python benchmarks/first_run.py words                       # words per second against plain transformers float32
    python benchmarks/first_run.py memory                      # peak of `detect` over 1,000 to 100,000 images

`verdict`, `imports` and `words` need `unseen models fetch offline`. CPU seconds are those of all threads: on a busy
machine they tell more than seconds.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image as Pillow
from torch import Tensor

from unseen import LabelSpace, demo
from unseen.encoders import load_encoder
from unseen.encoders.offline import text
from unseen.encoders.offline.image_tower import TOWER
from unseen_bench.mining import wordnet
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.run.timing import alternating_seconds

COMMANDS = (["--version"], ["--help"], ["keys", "list"], ["demo"])
SHOWN = 8  # packages
STREAMS = (1_000, 10_000, 100_000)
REFERENCE = "transformers float32"


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--images", type=int, nargs="+", default=STREAMS, help="how many, for `memory`")
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(PARTS[arguments.part](arguments), arguments)


def start(arguments: Arguments) -> Iterator[Row]:
    """Time some commands to their first line, the best of five."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"XDG_DATA_HOME": folder}
        for words in COMMANDS:
            runs = [first_line([*words], Path(folder), environment) for _ in range(5)]
            yield {"command": f"unseen {' '.join(words)}", "seconds": min(run[0] for run in runs),
                   "CPU seconds": min(run[1] for run in runs)}  # fmt: skip


def verdict(arguments: Arguments) -> Iterator[Row]:
    """Run `detect` on ten photos with the models fetched and nothing else in the cache, then with all that is kept."""
    with fresh_folder() as folder:
        environment = {"UNSEEN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(arguments.threads)}
        for case, words in cases(folder).items():
            seconds, cpu = first_line(words, folder, environment)
            yield {"case": case, "seconds to the first line": seconds, "CPU seconds": cpu}


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder with ten photos, and a cache that holds the models alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos(folder / "photos", 10)
        (folder / "cache").mkdir()
        for file in (TOWER, *text.wheel_files().values()):
            (folder / "cache" / file.path.parent.name).symlink_to(file.path.parent)
        yield folder


def cases(folder: Path) -> dict[str, list[str]]:
    """What is run one after another."""
    state = ["--state", str(folder / "state.safetensors")]
    detect = ["detect", str(folder / "photos"), "--label", "cat", "--label", "dog", "--label", "horse"]
    return {
        "detect, first run": detect,
        "detect, words kept": [*detect, *state],
        "detect, all kept": [*detect, *state],
        "rename": ["rename", "cat", "wild cat", *state],
    }


def imports(arguments: Arguments) -> Iterator[Row]:
    """Sum what `python -X importtime` says of commands, by package."""
    with fresh_folder() as folder:
        found = cases(folder)
        for words in list(found.values())[:2]:
            first_line(words, folder, {})
        for case, words in {"--help": ["--help"], **dict(list(found.items())[2:])}.items():
            run = [sys.executable, "-X", "importtime", "-m", "unseen", *words]
            told = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stderr
            spent: Counter[str] = Counter()
            for line in (line for line in told.splitlines() if line.startswith("import time:") and "[us]" not in line):
                own, _, module = line.removeprefix("import time:").split("|")
                spent[module.strip().partition(".")[0]] += int(own)
            largest = {name: f"{microseconds / 1000:.0f}" for name, microseconds in spent.most_common(SHOWN)}
            yield {"ms of imports": case, "all": f"{sum(spent.values()) / 1000:.0f}", **largest}


def first_line(words: Sequence[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """The seconds until a command prints its first line on stdout, and the CPU seconds of all of it."""
    before, started = cpu_of_children(), time.perf_counter()
    run = [sys.executable, "-m", "unseen", *words]
    with subprocess.Popen(run, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        seconds = time.perf_counter() - started
        process.stdout.read()
    return seconds, cpu_of_children() - before


def cpu_of_children() -> float:
    """The CPU seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def photos(folder: Path, count: int) -> None:
    """Write photos of the demo's pack as JPEG files."""
    folder.mkdir()
    pack = demo.load()
    for i in range(count):
        (folder / f"{i:06d}.jpg").write_bytes(pack.thumbnails[i % len(pack.thumbnails)])


def words(arguments: Arguments) -> Iterator[Row]:
    """Time the text tower on words of the corpus beside plain transformers, in alternation, in CPU seconds."""
    sample = [word for words in wordnet().lists.values() for word in words[::150]]
    works = sentence_works([f"a photo of a {word}." for word in sample])
    vectors = {name: work() for name, work in works.items()}
    seconds = alternating_seconds(works, rounds=3, clock=time.process_time)
    for name, times in seconds.items():
        cosine = torch.nn.functional.cosine_similarity(vectors[name], vectors[REFERENCE]).min()
        yield {"tower": name, "words per CPU second": len(sample) / min(times),
               "ratio": min(seconds[REFERENCE]) / min(times), "min cosine": float(cosine)}  # fmt: skip


def sentence_works(prompts: list[str]) -> dict[str, Callable[[], Tensor]]:
    plain, ours = text.load_sentence_encoder(), text.load_text_tower().sentences
    batches = [prompts[i : i + 64] for i in range(0, len(prompts), 64)]
    # as plain use of transformers does it: in the order given, padded to the longest of a batch
    return {REFERENCE: lambda: torch.cat([plain(batch) for batch in batches]), "unseen": lambda: ours(prompts)}


def memory(arguments: Arguments) -> Iterator[Row]:
    """Run `detect` over tiny PNG files with a model of one layer, so that what grows with the stream shows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = tiny_clip(folder / "model")
        space = LabelSpace.build(["cat", "dog"], load_encoder(encoder), relatives=0, everyday=50)
        space.save(folder / "space.safetensors")
        for count in arguments.images:
            images = folder / f"{count}"
            tiny_images(images, count)
            words = ["detect", str(images), "--space", str(folder / "space.safetensors"), "--encoder", str(encoder)]
            for case, more in (("no state", []), ("--state", ["--state", str(folder / f"{count}.safetensors")])):
                before = cpu_of_children()
                peak = peak_of([*words, *more], folder)
                yield {"images": f"{count:,}, {case}", "peak MiB": peak / 2**20,
                       "CPU seconds": cpu_of_children() - before}  # fmt: skip


def peak_of(words: Sequence[str], folder: Path) -> int:
    """The largest resident memory of a command, in bytes."""
    script = "import resource, sys, unseen.__main__ as entry\ntry: entry.main()\nfinally: print(resource.getrusage("
    script += "resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    run = [sys.executable, "-c", script, *words]
    result = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True)
    return 1024 * int(result.stderr.split()[-1])


def tiny_images(folder: Path, count: int) -> None:
    folder.mkdir()
    colours = torch.randint(0, 256, (count, 3), generator=torch.Generator().manual_seed(0)).tolist()
    for i, colour in enumerate(colours):
        Pillow.new("RGB", (8, 8), tuple(colour)).save(folder / f"{i:06d}.png")


def tiny_clip(folder: Path) -> Path:
    """Save a CLIP of one layer with its processor and tokenizer."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from helpers.tiny_models import save_clip

    return save_clip(folder)


PARTS: dict[str, Callable[[Arguments], Iterator[Row]]] = {
    "start": start,
    "verdict": verdict,
    "imports": imports,
    "words": words,
    "memory": memory,
}

if __name__ == "__main__":
    main()
