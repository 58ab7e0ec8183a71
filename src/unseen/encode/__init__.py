"""Images and texts in, unit vectors out."""
