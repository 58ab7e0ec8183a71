"""From unknown to known: explain verdicts, group unknown images, promote groups to names (docs/discover.md)."""

from unseen.discover.edit import Edited, dismiss, move_to_space, promote, rename, retire, undo
from unseen.discover.explanation import Explanation, explain
from unseen.discover.groups import Group, Grouping, group
from unseen.discover.naming import Suggestion, Vocabulary
