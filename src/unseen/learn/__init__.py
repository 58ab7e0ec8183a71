"""Learn prompts from examples with a real text tower; what comes out is a label space like any other.

The rows of the paper that learn: CoOp, LoCoOp, LSN, NegPrompt, LAPT and ID-like. Only contexts get gradients.
CLIPN is read from its published checkpoint.
"""

from unseen.learn.clipn import CLIPN, CLIPNTowers, clipn_space
from unseen.learn.methods import REGISTRY, LabelledBatch, PromptLearner
from unseen.learn.scores import LSNScore
from unseen.learn.space import LearnOptions, encode_batch, learn
from unseen.learn.tower import PromptTower
from unseen.learn.training import Epoch, Training
