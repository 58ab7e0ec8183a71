"""Build the words that groups of the demo may be called by: ImageNet's names and a few everyday words, as text vectors.

unseen models fetch offline
python tools/build_demo_words.py
"""

from __future__ import annotations

import json
from pathlib import Path

from unseen import demo, load_encoder
from unseen.labels.prompts import PromptTemplates
from unseen.storage.files import save_tensors
from unseen.vocabulary import canonical_spelling
from unseen_bench import suites

IMAGENET = Path(suites.__file__).with_name("imagenet_classes.txt")
EVERYDAY = """
airplane automobile ball bicycle boat book bottle bread bridge building bus cake camera car chair clock clothing coat
computer cup digit door dress drum face fish flag flower food fruit glove guitar hand handbag handwriting hat house
jacket kettle key knife lamp leaf letter map mountain newspaper number painting pen plate ring road rock shelf ship
shirt shoe sign skirt sky sofa spoon stairs statue table telephone tool toy train tree trousers truck vehicle wall
wheel window
"""


def main() -> None:
    """Encode the words with the prompt of the demo's names and write them beside its pack."""
    imagenet = [line.split(" ", 1)[1] for line in IMAGENET.read_text(encoding="utf-8").splitlines()]
    spelled = {canonical_spelling(word): word for word in (*imagenet, *EVERYDAY.split())}
    words = sorted(spelled.values())
    vectors = PromptTemplates((demo.load().space.prompt,)).encode(words, load_encoder("offline"))
    header = json.dumps({"words": words, "encoder": "offline", "prompt": demo.load().space.prompt})
    save_tensors(demo.WORDS, {"vectors": vectors.half()}, kind="demo-words", header=header)


if __name__ == "__main__":
    main()
