"""The guard on kernels that Triton interprets: which memory a program may touch, and what is said when it touches other."""
