"""The encoder that needs no model hub: CLIP's image tower and a fitted text tower from the package index."""
