"""The scan on an NVIDIA GPU (Hopper or newer): the numbers of `naive`, for one stream or many at once.

scan      the scan itself: what is learned, what is read, in which order
plan      how streams are divided into blocks, and which samples teach in each
blas      matrix products by cuBLAS, each with its own precision
bindings  kernels.cu called from Python
build     kernels.cu compiled by nvcc at first use, and kept in the user's cache folder
"""
