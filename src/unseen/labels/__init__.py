"""Names in, a LabelSpace out: K known and L negative anchors, the text side of every detector."""

from unseen.labels.corpus import Corpus, word_list, wordnet
from unseen.labels.mining import MINERS
from unseen.labels.names import read_names
from unseen.labels.prompts import PROMPTS, Learned, Prompt
from unseen.labels.space import LabelSpace

__all__ = ["MINERS", "PROMPTS", "Corpus", "LabelSpace", "Learned", "Prompt", "read_names", "word_list", "wordnet"]
