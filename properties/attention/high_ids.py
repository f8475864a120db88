"""Numbers that say when block ids are high: shared by the strategies (no torch) and the buffers (torch)."""

# Elements from one block to the next in the high_stride form: blocks from 16 on lie beyond 2**31 elements.
HIGH_STRIDE = 2**27
FIRST_HIGH_BLOCK = 2**31 // HIGH_STRIDE
MAX_HIGH_BLOCKS = 24
# Block ids from 2**16 on: some kernels keep ids in 16 bits (ROCm/ATOM#702).
FIRST_WIDE_BLOCK = 2**16
