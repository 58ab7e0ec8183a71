"""The words that groups of a stream may be called by, by encoder: those in the package, encoded when first needed."""

import logging
import threading

from unseen import LabelSpace, demo
from unseen.discover import Vocabulary
from unseen.errors import UnseenError
from unseen.labels.prompts import described_templates
from unseen.serve.work.encoding import ImageEncoder, RequiredEncoder

log = logging.getLogger("unseen.serve")


class GroupWords:
    """Vocabularies by encoder and prompt; one that is not there yet is made in the background."""

    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder
        self._made: dict[tuple[str, str], Vocabulary | None] = {}
        self._lock = threading.Lock()

    def of(self, labels: LabelSpace) -> Vocabulary | None:
        """Words for the groups of a label space; None, for its negatives, until there are better ones."""
        if labels.encoder == demo.load().space.encoder:
            return demo.vocabulary()
        key = labels.encoder, labels.prompt
        with self._lock:
            if key not in self._made:
                self._made[key] = None
                self._encoder.run_later(lambda: self._make(labels))
            return self._made[key]

    def _make(self, labels: LabelSpace) -> None:
        try:
            RequiredEncoder.of(labels).check(encoder := self._encoder.encoder())
            words = demo.vocabulary().words
            vectors = described_templates(labels.prompt).encode(words, encoder).float().cpu()
            self._made[labels.encoder, labels.prompt] = Vocabulary(words, vectors)
        except UnseenError as error:
            log.info("groups of %s are named by negatives: %s", labels.encoder or "a label space", error)
