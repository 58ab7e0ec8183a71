"""Words: WordNet's nouns, spellings, and what is a kind of what."""

from unseen.vocabulary.nouns import Hierarchy, canonical_spelling, hierarchy, read_sections
