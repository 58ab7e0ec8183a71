"""Negatives as papers choose them, out of WordNet: what `LabelSpace.build` is compared with."""

from unseen_bench.mining.corpus import Corpus as Corpus
from unseen_bench.mining.corpus import synset_names as synset_names
from unseen_bench.mining.corpus import vocabulary as vocabulary
from unseen_bench.mining.corpus import word_list as word_list
from unseen_bench.mining.miners import MINERS as MINERS
from unseen_bench.mining.miners import find_miner as find_miner
from unseen_bench.mining.mining import DEFAULT_MINER as DEFAULT_MINER
from unseen_bench.mining.mining import mine as mine
