"""The laboratory: what knows the truth of a stream. It imports `unseen`, never the other way round."""
