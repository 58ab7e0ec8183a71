"""The suites over stored CLIP features that several benchmarks stream, thinned where asked, and their options."""

from __future__ import annotations

import dataclasses
import functools
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from unseen_bench import suites
from unseen_bench.run import command
from unseen_bench.run.command import Arguments

SETS = {
    "imagenet200": ("near", "textures10", "intel_scenes", "flowers102", "mnist"),
    "imagenet200-lowres": ("textures10", "flowers102"),
    "imagenet1k-surrogate": ("textures10", "intel_scenes", "flowers102"),
}
CIFAR = ("tin_val", "textures10", "intel_scenes", "flowers102", "mnist")
OFFLINE = {"cifar10": ("cifar100", *CIFAR), "cifar100": ("cifar10", *CIFAR)}  # text by the offline tower
NEAR = {f"tin-near-{split}": ("near",) for split in range(4)}
ORDERS = ("shuffled", "id_first", "ood_first")

Load = Callable[[], suites.Suite]


def suites_parser(doc: str | None, *, seeds: int = 10) -> ArgumentParser:
    """A parser with the options of experiments over suites."""
    parser = command.parser(doc, features=True, resumes=True, seeds=seeds)
    parser.add_argument("--suites", nargs="+", choices=[*SETS, *OFFLINE, *NEAR], default=list(SETS))
    parser.add_argument("--most", type=int, default=10**9, help="images of each set, drawn at random (default: all)")
    return parser


@functools.cache
def load_suite(name: str, folder: Path, most: int = 10**9) -> suites.Suite:
    """A suite with at most so many images of each set."""
    whole = suites.load(name, folder)
    order = torch.randperm(len(whole.pool.z), generator=torch.Generator().manual_seed(0))
    source = whole.pool.source[order]
    kept = torch.cat([order[source == s][:most] for s in source.unique()])
    return dataclasses.replace(whole, pool=whole.pool[kept.sort().values])


def streams(arguments: Arguments) -> Iterator[tuple[str, str, Load]]:
    """Yield suite, unknown set and how to load the suite."""
    for name in arguments.suites:
        for ood in (SETS | OFFLINE | NEAR)[name]:
            yield name, ood, functools.partial(load_suite, name, arguments.folder, arguments.most)
