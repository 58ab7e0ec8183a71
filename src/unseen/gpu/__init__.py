"""What several rooms need to run on a GPU: Triton, and recorded CUDA graphs."""
