"""What detectors need on a GPU: Triton where there is one, recorded graphs, and the kernels of TANL."""
