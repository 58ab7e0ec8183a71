"""Streams: what one is, its journal and snapshots on disk, and the set of all of them."""
