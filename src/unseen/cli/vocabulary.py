"""The words that groups may be called by: WordNet's, a list of one's own, or the negatives of the label space."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.cli import label_space, terminal
from unseen.discover import Vocabulary, visible_words
from unseen.encoders import Encoder, load_encoder
from unseen.labels import word_list
from unseen.labels.prompts import described_templates
from unseen.labels.shortlist import coarse_corpus
from unseen.labels.vectors import Candidates, CorpusPrompts, encode_corpus

NEGATIVES, WORDNET = "negatives", "wordnet"

Words = Annotated[
    str, typer.Option(help="Where names come from: wordnet, negatives (of the label space; no encoder), or a file.")
]
EncoderName = Annotated[str | None, typer.Option(help="Encoder of the label space, if it has another name here.")]


def load_vocabulary(words: str, labels: LabelSpace, encoder: str | None = None) -> Vocabulary:
    """The words that `--words` asks for, with their vectors.

    Where the encoder has approximate vectors of WordNet's words, only those that suit a group are encoded; other words
    are all encoded, once, and then kept.
    """
    if words == NEGATIVES or (words == WORDNET and not (encoder or labels.encoder)):
        return Vocabulary.of_space(labels)
    corpus = visible_words() if words == WORDNET else word_list(Path(words))
    prompt = described_templates(labels.prompt)
    prompts, model = CorpusPrompts(prompt, prompt), text_encoder(labels, encoder)
    if words == WORDNET and (coarse := coarse_corpus(corpus, model, prompts)) is not None:
        return replace(_vocabulary(coarse), encode=lambda some: prompt.encode(some, model).cpu())
    terminal.err.print(f"reading {corpus.name} (each word is encoded once and then kept)")
    with label_space.words_bar() as progress:
        return _vocabulary(encode_corpus(corpus, model, prompts, progress=progress))


def _vocabulary(parts: Sequence[Candidates]) -> Vocabulary:
    vectors = normalize(torch.cat([part.load() for part in parts]), dim=-1)
    return Vocabulary(tuple(word for part in parts for word in part.words), vectors)


def text_encoder(labels: LabelSpace, encoder: str | None = None) -> Encoder:
    """The encoder of a label space; refuse another one."""
    model = load_encoder(encoder or labels.encoder)
    label_space.check_space(labels, [], model)
    return model
