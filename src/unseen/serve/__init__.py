"""Online detection over HTTP that survives a kill: streams, each with one writer, a journal and snapshots."""
