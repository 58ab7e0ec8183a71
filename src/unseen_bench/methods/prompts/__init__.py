"""Learn prompts from examples with a real text tower; what comes out is a label space like any other.

The rows of the paper that learn: CoOp, LoCoOp, LSN, NegPrompt and LAPT. Only contexts get gradients.
"""

from unseen_bench.methods.prompts.methods import REGISTRY, LabelledBatch, LSNScore, PromptLearner
from unseen_bench.methods.prompts.space import LearnOptions, encode_batch, learn
from unseen_bench.methods.prompts.tower import PromptTower
from unseen_bench.methods.prompts.training import Epoch, Training
