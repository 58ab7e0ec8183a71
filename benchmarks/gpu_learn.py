"""One full-size step of prompt learning on a GPU: time, memory, and what an epoch of 16 shots would take.

    python benchmarks/gpu_learn.py                        # ViT-B/16 with random weights, 1,000 names, 16 shots
    python benchmarks/gpu_learn.py --methods locoop lsn --names 1000 --steps 20 --json

Weights are random: time and memory do not depend on them. Examples are encoded before training, so that a step is the
text tower forward and backward, and the loss; LoCoOp's patches (196 of each image of a batch) are moved to the GPU in
every step. Needs transformers; without it this says so and stops. The goal: an epoch in at most 3 minutes.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn.functional import normalize

from unseen_bench.methods.prompts import REGISTRY, LabelledBatch, LearnOptions, PromptTower, Training
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments

GOAL = 180.0  # seconds of an epoch
PATCHES, WIDTH = 196, 512


def main() -> None:
    parser = command.parser(__doc__)
    arguments_of(parser)
    arguments = command.parse(parser)
    if find_spec("transformers") is None:
        sys.exit(
            "gpu_learn needs transformers, which is not installed here: pip install transformers; nothing measured"
        )
    command.show(rows(arguments), arguments)


def arguments_of(parser: ArgumentParser) -> None:
    parser.add_argument("--methods", nargs="+", choices=REGISTRY, default=list(REGISTRY))
    parser.add_argument("--names", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after two that are not (10)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model of a few layers, to try the script")


def rows(arguments: Arguments) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        tower = PromptTower(random_encoder(Path(folder), arguments.device, tiny=arguments.tiny))
        for method in arguments.methods:
            yield measure(method, tower, arguments)


def random_encoder(folder: Path, device: str, *, tiny: bool):
    """CLIP ViT-B/16 with random weights and a tokenizer of one token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, PreTrainedTokenizerFast

    from unseen.encoders.hub import HubEncoder

    words = ["<pad>", "<start>", "<unk>", *(f"w{i}" for i in range(2000)), "X", ".", "<end>"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<start>", 1), ("<end>", len(words) - 1)]
    made.post_processor = processors.TemplateProcessing(single="<start> $A <end>", special_tokens=ends)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", model_max_length=77
    )
    layers = {"num_hidden_layers": 2} if tiny else {}
    text = {"vocab_size": 49408, "eos_token_id": len(words) - 1, "pad_token_id": 0, **layers}
    config = CLIPConfig(text_config=text, vision_config={"patch_size": 16, **layers}, projection_dim=WIDTH)
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    return HubEncoder(str(folder), device=device, dtype=dtype)


def measure(method: str, tower: PromptTower, arguments: Arguments) -> Row:
    """The time and the memory of a step, and of an epoch of as many as it has."""
    learner = LearnOptions(method).learner()
    generator = torch.Generator().manual_seed(0)
    names = [" ".join(f"w{(7 * i + j) % 2000}" for j in range(1 + i % 3)) for i in range(arguments.names)]
    negative = [f"w{i % 2000}" for i in range(1000)] if learner.moves_negatives else []
    batch = examples(learner.batch, arguments.names, learner.needs, arguments.device, generator)
    tokens = tower.tokens(names, learner.context)
    others = tower.tokens(negative, learner.context) if negative else None
    run = Training(learner, tower, tokens, batch, negative=others)
    run.epoch = learner.epochs // 2 if method == "negprompt" else 0  # its second half has all prompts
    seconds = [_step(run, arguments.device) for _ in range(2 + arguments.steps)][2:]
    step, steps = sorted(seconds)[len(seconds) // 2], -(-arguments.names * arguments.shots // learner.batch)
    return {
        "method": method,
        "step_ms": 1000 * step,
        "memory_gib": _memory(arguments.device),
        "steps_per_epoch": steps,
        "epoch_s": step * steps,
        "published_epochs_min": step * steps * learner.epochs / 60,
        "goal": "met" if step * steps <= GOAL else "missed",
        "tokens": tokens.ids.shape[1],
        "device": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else arguments.device,
    }


def examples(count: int, names: int, needs: str, device: str, generator: torch.Generator) -> LabelledBatch:
    """Random features in the shapes that a method needs."""

    def drawn(*shape: int) -> torch.Tensor:
        return normalize(torch.randn(*shape, WIDTH, generator=generator), dim=-1)

    z, label = drawn(count).to(device), torch.randint(names, (count,), generator=generator).to(device)
    patches = drawn(count, PATCHES).half() if needs == "patches" else None
    crops = drawn(count, 8).half() if needs == "crops" else None
    return LabelledBatch(z, label, patches, crops, crops)


def _step(run: Training, device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    run.step(torch.arange(len(run.images.z)))
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _memory(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else float("nan")


if __name__ == "__main__":
    main()
