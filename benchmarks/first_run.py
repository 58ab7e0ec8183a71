"""What a user waits for: the command line, the first verdict, the words of the corpus, and how much memory it takes.

    python benchmarks/first_run.py start                       # seconds to the first line of some commands
    python benchmarks/first_run.py verdict                     # first verdict of `detect` on ten photos, and the others
    python benchmarks/first_run.py words                       # words per second against plain transformers float32
    python benchmarks/first_run.py memory                      # peak of `detect` over 1,000 to 100,000 images

`verdict` and `words` need `unseen models fetch offline`. CPU seconds are those of all threads: on a busy
machine they tell more than seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image as Pillow
from torch import Tensor

from unseen import LabelSpace, demo
from unseen.encoders import load_encoder
from unseen.encoders.offline import text
from unseen.encoders.offline.image_tower import TOWER
from unseen_bench.mining import synset_names
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments, alternating_seconds

COMMANDS = (["--version"], ["--help"], ["detect", "--help"], ["keys", "list"], ["demo"])
UNSEEN = (sys.executable, "-m", "unseen")
STREAMS = (1_000, 10_000, 100_000)


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
        for words in COMMANDS:
            runs = [ran(words, Path(folder), {"XDG_DATA_HOME": folder}) for _ in range(5)]
            best = {"seconds": min(run.first_line for run in runs), "CPU seconds": min(run.cpu for run in runs)}
            yield {"command": f"unseen {' '.join(words)}", **best}


def verdict(arguments: Arguments) -> Iterator[Row]:
    """Run `detect` on ten photos with the models fetched and nothing else in the cache, then what goes on from there.

    The same as `import torch`, which is of that run and machine, says what our own code adds.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for i, photo in enumerate(demo.load().thumbnails[::150][:10]):
            (folder / "photos" / f"{i:06d}.jpg").write_bytes(photo)
        (folder / "cache").mkdir()
        for file in (TOWER, *text.wheel_files().values()):
            (folder / "cache" / file.path.parent.name).symlink_to(file.path.parent)
        environment = {"UNSEEN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(arguments.threads)}
        state = ["--state", str(folder / "state.safetensors")]
        detect = ["detect", str(folder / "photos"), "--label", "cat", "--label", "dog", "--label", "horse"]
        cases = {"detect, first run": detect, "detect, words kept": [*detect, *state]}
        cases |= {"detect, all kept": [*detect, *state], "rename": ["rename", "cat", "wild cat", *state]}
        cases |= {
            "explain": ["explain", str(folder / "photos" / "000000.jpg"), *state],
            "group": ["group", *state],
            "group again": ["group", *state],
        }
        # an unknown photo: a word that WordNet has needs no encoder, another is encoded
        cases |= {"promote, a word": ["promote", "{unknown}", "truck", *state], "undo": ["undo", *state]}
        cases |= {"promote, encoded": ["promote", "{unknown}", "my old lorry", *state]}
        unknown = ""
        for case, words in cases.items():
            if case == "explain":
                verdicts = ran([*detect[:2], *state, "--json", "--only", "unknown"], folder, environment).output
                unknown = json.loads(verdicts.splitlines()[0])["key"]
            found = ran([word.format(unknown=unknown) for word in words], folder, environment)
            yield {"case": case, "seconds to the first line": found.first_line, "CPU seconds": found.cpu}
        found = ran([], folder, environment, run=[sys.executable, "-c", "import torch; print()"])
        yield {"case": "import torch", "seconds to the first line": found.first_line, "CPU seconds": found.cpu}


class Ran(NamedTuple):
    """What a command took: seconds to its first line on stdout, CPU seconds, and memory at its peak."""

    first_line: float
    cpu: float
    peak_mib: float
    output: str


def ran(words: Sequence[str], folder: Path, environment: dict[str, str], *, run: Sequence[str] = UNSEEN) -> Ran:
    """What `unseen`, or another program, with these words took in a folder."""
    ours = {"PYTHONPATH": str(Path(demo.__file__).parents[2])}  # the code that is imported here, in any folder
    started = time.perf_counter()
    with subprocess.Popen(
        [*run, *words],
        cwd=folder,
        env=os.environ | ours | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        said = process.stdout.readline()
        seconds = time.perf_counter() - started
        said += process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert not process.returncode, f"unseen {' '.join(words)} ended with {process.returncode}"
    return Ran(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said.decode())


def words(arguments: Arguments) -> Iterator[Row]:
    """Time the text tower on words of the corpus beside plain transformers, in alternation, in CPU seconds."""
    prompts = [f"a photo of a {word}." for words in synset_names().lists.values() for word in words[::90]]
    plain, ours = text.load_sentence_encoder(), text.load_text_tower().sentences
    batches = [prompts[i : i + 64] for i in range(0, len(prompts), 64)]
    works: dict[str, Callable[[], Tensor]] = {
        # as plain use of transformers does it: in the order given, padded to the longest of a batch
        "transformers float32": lambda: torch.cat([plain(batch) for batch in batches]),
        "unseen": lambda: ours(prompts),
    }
    one, other = (work() for work in works.values())
    seconds = alternating_seconds(works, rounds=3, clock=time.process_time)
    slow, fast = (min(times) for times in seconds.values())
    yield {"words per CPU second": len(prompts) / fast, "times transformers float32": slow / fast,
           "least cosine": float(torch.nn.functional.cosine_similarity(one, other).min())}  # fmt: skip


def memory(arguments: Arguments) -> Iterator[Row]:
    """Run `detect` over tiny PNG files with a model of one layer, so that what grows with the stream shows."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from helpers.tiny_models import save_clip

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder, space = str(save_clip(folder / "model")), str(folder / "space.safetensors")
        LabelSpace.build(["cat", "dog"], load_encoder(encoder), relatives=0, everyday=50).save(space)
        for count in arguments.images:
            (folder / f"{count}").mkdir()
            colours = torch.randint(0, 256, (count, 3), generator=torch.Generator().manual_seed(0)).tolist()
            for i, colour in enumerate(colours):
                Pillow.new("RGB", (8, 8), tuple(colour)).save(folder / f"{count}" / f"{i:06d}.png")
            detect = ["detect", str(folder / f"{count}"), "--space", space, "--encoder", encoder]
            for case, more in (("no state", []), ("--state", ["--state", str(folder / f"{count}.safetensors")])):
                found = ran([*detect, *more], folder, {})
                yield {"images": f"{count:,}, {case}", "peak MiB": found.peak_mib, "CPU seconds": found.cpu}


PARTS: dict[str, Callable[[Arguments], Iterator[Row]]] = {
    "start": start,
    "verdict": verdict,
    "words": words,
    "memory": memory,
}

if __name__ == "__main__":
    main()
