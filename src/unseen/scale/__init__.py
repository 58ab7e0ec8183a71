"""The same verbs on a Ray cluster, with the same results; nothing outside this folder imports Ray."""
