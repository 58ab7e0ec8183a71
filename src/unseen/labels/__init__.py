"""Names in, a LabelSpace out: K known and L negative anchors, the text side of every detector."""

from unseen.labels.space import LabelSpace

__all__ = ["LabelSpace"]
