"""The words that groups may be called by: WordNet's, a list of one's own, or the negatives of the label space."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from unseen import LabelSpace
from unseen.cli import label_space, terminal
from unseen.discover import Vocabulary, visible_words
from unseen.encoders import Encoder, load_encoder
from unseen.labels import PromptTemplates, word_list
from unseen.labels.prompts import NICE
from unseen.labels.vectors import CorpusPrompts, encode_corpus

NEGATIVES, WORDNET = "negatives", "wordnet"

Words = Annotated[
    str, typer.Option(help="Where names come from: wordnet, negatives (of the label space; no encoder), or a file.")
]
EncoderName = Annotated[str | None, typer.Option(help="Encoder of the label space, if it has another name here.")]


def load_vocabulary(words: str, labels: LabelSpace, encoder: str | None = None) -> Vocabulary:
    """Return the words that `--words` asks for, with their vectors; words are encoded once and then kept."""
    if words == NEGATIVES or (words == WORDNET and not (encoder or labels.encoder)):
        return Vocabulary.of_space(labels)
    corpus = visible_words() if words == WORDNET else word_list(Path(words))
    prompt = prompt_of(labels)
    model = text_encoder(labels, encoder)
    terminal.err.print(f"reading {corpus.name} (each word is encoded once and then kept)", soft_wrap=True)
    with label_space.words_bar() as progress:
        parts = encode_corpus(corpus, model, CorpusPrompts(prompt, prompt), progress=progress)
    return Vocabulary(tuple(word for part in parts for word in part.words), torch.cat([part.load() for part in parts]))


def text_encoder(labels: LabelSpace, encoder: str | None = None) -> Encoder:
    """Return the encoder of a label space; refuse another one."""
    model = load_encoder(encoder or labels.encoder)
    label_space.check_space(labels, [], model)
    return model


def prompt_of(labels: LabelSpace) -> PromptTemplates:
    """Return the templates that the names of a label space were put into."""
    templates = tuple(part for part in labels.prompt.split(" | ") if part.count("{}") == 1)
    return PromptTemplates(templates) if templates else NICE
