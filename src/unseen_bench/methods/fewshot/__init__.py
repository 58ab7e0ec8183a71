"""Methods that see a few labelled images of the known names before a stream starts, on features alone.

They are not in unseen.detectors, whose methods work from names alone: tables of them stand apart. The examples come
in through the label space, `make("taskres", replace(space, examples=Examples(z, label)))`; afterwards a method reads
like any other detector. Each has its published constants.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import check_choice
from unseen.labels import Examples, LabelSpace
from unseen_bench.methods.fewshot.adapters import FewShotPrototypes, TaskRes, TipAdapter, TipAdapterTuned
from unseen_bench.methods.fewshot.base import FewShot
from unseen_bench.methods.fewshot.heads import LinearProbe, NPOSHead, VOSHead
from unseen_bench.methods.posthoc.base import ByValue

REGISTRY: dict[str, type[FewShot]] = {
    kind.name: kind
    for kind in (TaskRes, TipAdapter, TipAdapterTuned, FewShotPrototypes, LinearProbe, VOSHead, NPOSHead)
}


def make(name: str, space: LabelSpace, examples: Examples, **settings: Any) -> FewShot:
    """The method registered as `name` over the text of a label space, with these examples."""
    check_choice("a method that needs examples", name, REGISTRY)
    return REGISTRY[name](replace(space, examples=examples), **settings)


def taught(untaught: FewShot, z: Float[Tensor, "n d"], label: Int[Tensor, " n"]) -> FewShot:
    """The method with these examples: one and the same for equal ones, so that sets of a suite share its training."""
    about = untaught.name, tuple(untaught.settings.items()), untaught.labels.fingerprint
    return _taught(_Lesson(untaught, (*about, ByValue(z), ByValue(label))))


@dataclass(frozen=True)
class _Lesson:
    untaught: FewShot = field(compare=False)
    key: tuple[Any, ...]


@lru_cache(maxsize=4)
def _taught(lesson: _Lesson) -> FewShot:
    *_, z, label = lesson.key
    labels = replace(lesson.untaught.labels, examples=Examples(z.tensor, label.tensor))
    return replace(lesson.untaught, labels=labels)
