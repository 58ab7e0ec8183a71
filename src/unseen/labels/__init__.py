"""Names in, a LabelSpace out: K known and L negative anchors, the text side of every detector."""

from unseen.labels.examples import Examples
from unseen.labels.names import read_names
from unseen.labels.negatives import build
from unseen.labels.prompts import PROMPTS, Prompt, PromptTemplates
from unseen.labels.residuals import with_examples
from unseen.labels.space import LabelSpace, Origin
