"""From JPEG bytes to the pixels of a tower without leaving the GPU."""
