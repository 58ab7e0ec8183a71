"""The methods that the paper's tables compare, beside those of `unseen.detectors`."""
