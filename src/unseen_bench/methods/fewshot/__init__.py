"""Methods that see a few labelled images of the known names before a stream starts, on features alone.

They are not in unseen.detectors, whose methods work from names alone: tables of them stand apart. The examples come
in through the label space, `make("taskres", replace(space, examples=Examples(z, label)))`; afterwards a method reads
like any other detector. Each has its published constants.
"""

from dataclasses import replace
from typing import Any

from unseen.errors import check_choice
from unseen.labels import Examples, LabelSpace
from unseen_bench.methods.fewshot.base import FewShot
from unseen_bench.methods.fewshot.heads import LinearProbe, NPOSHead, VOSHead
from unseen_bench.methods.fewshot.prototypes import FewShotPrototypes
from unseen_bench.methods.fewshot.taskres import TaskRes
from unseen_bench.methods.fewshot.tip_adapter import TipAdapter, TipAdapterTuned

REGISTRY: dict[str, type[FewShot]] = {
    kind.name: kind
    for kind in (TaskRes, TipAdapter, TipAdapterTuned, FewShotPrototypes, LinearProbe, VOSHead, NPOSHead)
}


def make(name: str, space: LabelSpace, examples: Examples, **settings: Any) -> FewShot:
    """The method registered as `name` over the text of a label space, with these examples."""
    check_choice("a method that needs examples", name, REGISTRY)
    return REGISTRY[name](replace(space, examples=examples), **settings)
