"""From unknown to known: say why, group what was rejected, name it, and go on learning; docs/discover.md tells it."""

from unseen.discover.explanation import Explanation, explain
from unseen.discover.groups import Group, Grouping, group, group_features
from unseen.discover.naming import Suggestion, Vocabulary, visible_words
from unseen.discover.relabel import Edited, dismiss, move_to_space, promote, rename, retire
from unseen.discover.undo import undo
