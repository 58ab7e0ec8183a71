"""On a GPU: streams of one detector are learned in lockstep, by recorded CUDA graphs of Triton kernels."""
