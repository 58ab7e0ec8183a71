"""The suites over stored CLIP features that several benchmarks stream, thinned where asked, and their options."""

from __future__ import annotations

import dataclasses
import functools
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

import torch

from unseen_bench import suites
from unseen_bench.run import command

SETS = {
    "imagenet200": ("near", "textures10", "intel_scenes", "flowers102", "mnist"),
    "imagenet200-lowres": ("textures10", "flowers102"),
    "imagenet1k-surrogate": ("textures10", "intel_scenes", "flowers102"),
}
NEAR = {f"tin-near-{split}": ("near",) for split in range(4)}
CIFAR = ("tin_val", "textures10", "intel_scenes", "flowers102", "mnist")
OFFLINE = {"cifar10": ("cifar100", *CIFAR), "cifar100": ("cifar10", *CIFAR)}  # text by the offline tower
SUITES = SETS | NEAR | OFFLINE
ORDERS = ("shuffled", "id_first", "ood_first")


def suites_parser(doc: str | None, *, seeds: int, chosen: Iterable[str], most: int = 3000) -> ArgumentParser:
    """A parser with the options of experiments over suites; those that are `chosen` by default."""
    parser = command.parser(doc, features=True, resumes=True, seeds=seeds)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(chosen))
    parser.add_argument("--most", type=int, default=most, help=f"images of each set, drawn at random ({most:,})")
    return parser


@functools.cache
def load_suite(name: str, folder: Path, most: int) -> suites.Suite:
    """A suite with at most so many images of each set."""
    whole = suites.load(name, folder)
    order = torch.randperm(len(whole.pool.z), generator=torch.Generator().manual_seed(0))
    source = whole.pool.source[order]
    kept = torch.cat([order[source == s][:most] for s in source.unique()])
    return dataclasses.replace(whole, pool=whole.pool[kept.sort().values])
