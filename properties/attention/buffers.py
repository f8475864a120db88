"""Memory for pools: views into larger buffers whose other bytes are watched, at ordinary and at very high
offsets.

Forms: `separate` (K and V in buffers of their own), `interleaved` ([B, 2, ...], as vLLM keeps them),
`layered` ([B, layers, 2, ...]: the stride of a block spans all layers), `uneven` (the blocks of V twice as
far apart as those of K), `high_stride` (blocks so far apart
that block id * stride passes 2**31 elements, in address space that is reserved but not used).

Letters: B blocks, P block size, G KV heads, D head size.
"""

import math
import mmap
import sys
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from paged_ref.layouts import Layout, key_shape, value_shape
from properties.attention.high_ids import HIGH_STRIDE, MAX_HIGH_BLOCKS
from properties.attention.target import Pool

# Elements of random bytes before, between and after caches: a multiple of every alignment that a kernel
# asks for.
CANARY_ELEMENTS = 64
# A wrapped 32-bit offset lies up to 2**31 elements *before* the cache: that much room keeps a faulty kernel's
# access inside the mapping, so that it is a finding and not a crash.
HIGH_LEAD = 2**31


@dataclass(frozen=True)
class Geometry:
    """Shape and type of one layer's pool."""

    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    layout: Layout

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(key cache, value cache)."""
        sizes = {
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
        }
        return key_shape(self.layout, dtype=self.dtype, **sizes), value_shape(self.layout, **sizes)


@dataclass(frozen=True)
class PoolMemory:
    """A pool and all the memory that must not change around it.

    `watched`: flat tensors of unsigned bytes that cover the pool and its surroundings (high_stride: only
    the blocks, and the places where 32-bit offsets of them would wrap to).
    """

    pool: Pool
    watched: tuple[Tensor, ...]

    def snapshot(self) -> tuple[Tensor, ...]:
        """A copy of every watched byte."""
        return tuple(memory.clone() for memory in self.watched)

    def restore(self, before: tuple[Tensor, ...]) -> None:
        """Put every watched byte back as a snapshot has it."""
        for memory, old in zip(self.watched, before, strict=True):
            memory.copy_(old)

    def changed_bytes(self, before: tuple[Tensor, ...]) -> int:
        """How many watched bytes differ from a snapshot."""
        pairs = zip(before, self.watched, strict=True)
        return sum(int((old != new).sum()) for old, new in pairs if not torch.equal(old, new))


def bytes_of(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor lies in, what surrounds a view included; the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def allocate(geometry: Geometry, form: str, device: str, seed: int) -> PoolMemory:
    """A pool full of random bytes in the given form. Raises NoRoom for `high_stride` where a GPU has not enough memory."""
    if form == "high_stride":
        return _high_pool(geometry, device, seed)
    key_cache_shape, value_cache_shape = geometry.shapes()
    num_layers = 3 if form == "layered" else 1
    key_elements, value_elements = math.prod(key_cache_shape[1:]), math.prod(value_cache_shape[1:])
    if form in ("separate", "uneven"):
        strides = key_elements, value_elements * (2 if form == "uneven" else 1)
        buffers = [_random(geometry, geometry.num_blocks * n, device, seed + i) for i, n in enumerate(strides)]
        key_cache = _view(buffers[0], key_cache_shape, CANARY_ELEMENTS, strides[0])
        value_cache = _view(buffers[1], value_cache_shape, CANARY_ELEMENTS, strides[1])
    else:
        stride = num_layers * (key_elements + value_elements)
        buffers = [_random(geometry, geometry.num_blocks * stride, device, seed)]
        first = CANARY_ELEMENTS + (num_layers // 2) * (key_elements + value_elements)
        key_cache = _view(buffers[0], key_cache_shape, first, stride)
        value_cache = _view(buffers[0], value_cache_shape, first + key_elements, stride)
    return PoolMemory(
        Pool(key_cache, value_cache, geometry.layout), tuple(buffer.view(torch.uint8) for buffer in buffers)
    )


def _random(geometry: Geometry, num_elements: int, device: str, seed: int) -> Tensor:
    """A flat tensor of random bytes with canaries at both ends."""
    generator = torch.Generator().manual_seed(seed)
    num_bytes = (num_elements + 2 * CANARY_ELEMENTS) * geometry.dtype.itemsize
    random = torch.randint(0, 256, (num_bytes,), generator=generator, dtype=torch.uint8)
    return random.to(device).view(geometry.dtype)


def _view(buffer: Tensor, shape: tuple[int, ...], offset: int, block_stride: int) -> Tensor:
    """`buffer` seen as [B, ...] with blocks `block_stride` elements apart, dense within a block."""
    inner = [math.prod(shape[axis + 1 :]) for axis in range(1, len(shape))]
    return buffer.as_strided(shape, (block_stride, *inner), offset)


_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Python names the flag from 3.13 on. Without it the kernel refuses to fork a process that maps more than there is memory."""


class NoRoom(Exception):
    """The device has not the memory that blocks with high ids lie in, or not beside the target; none was taken."""


LEFT_TO_TARGETS = 1 << 30
"""Bytes of a GPU that are not taken for high ids, so that a target does not run out of memory by our doing."""


def _high_bytes(itemsize: int, device: str) -> Tensor:
    """Bytes, zero at first, for MAX_HIGH_BLOCKS blocks of elements of `itemsize` bytes, HIGH_STRIDE elements apart, and
    their lead: 10 GiB and 20 GiB, which a GPU really holds, once for all types. Raises NoRoom where it has not as much free.
    """
    num_bytes = (HIGH_LEAD + MAX_HIGH_BLOCKS * HIGH_STRIDE) * itemsize
    if device == "cpu":
        return _reserved(num_bytes)
    if device not in _HELD or _HELD[device].numel() < num_bytes:
        _HELD.pop(device, None)
        _HELD[device] = _allocated(num_bytes, device)
    return _HELD[device][:num_bytes]


@lru_cache(maxsize=2)
def _reserved(num_bytes: int) -> Tensor:
    """Address space of the host: only the pages that are touched ever become memory."""
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    return torch.frombuffer(mapping, dtype=torch.uint8)


_HELD: dict[str, Tensor] = {}
"""The bytes that are held of each GPU."""


def _allocated(num_bytes: int, device: str) -> Tensor:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < num_bytes + LEFT_TO_TARGETS:
        raise NoRoom(f"{num_bytes / 2**30:.0f} GiB for high block ids, and {free / 2**30:.1f} GiB are free")
    try:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:  # another process was faster
        raise NoRoom(str(error)) from error


def _high_pool(geometry: Geometry, device: str, seed: int) -> PoolMemory:
    if geometry.num_blocks > MAX_HIGH_BLOCKS:
        raise ValueError(f"a high_stride pool has at most {MAX_HIGH_BLOCKS} blocks, not {geometry.num_blocks}")
    buffer = _high_bytes(geometry.dtype.itemsize, device).view(geometry.dtype)
    key_cache_shape, value_cache_shape = geometry.shapes()
    elements = math.prod(key_cache_shape[1:]) + math.prod(value_cache_shape[1:])
    key_cache = _view(buffer, key_cache_shape, HIGH_LEAD, HIGH_STRIDE)
    value_cache = _view(buffer, value_cache_shape, HIGH_LEAD + math.prod(key_cache_shape[1:]), HIGH_STRIDE)
    random = _random(geometry, geometry.num_blocks * elements, device, seed)
    watched = []
    for block in range(geometry.num_blocks):
        offset = block * HIGH_STRIDE
        wrapped = (offset + 2**31) % 2**32 - 2**31
        start = HIGH_LEAD + offset
        buffer[start : start + elements] = random[block * elements : (block + 1) * elements]
        watched.append(buffer[start - CANARY_ELEMENTS : start + elements + CANARY_ELEMENTS])
        if wrapped != offset:
            watched.append(buffer[HIGH_LEAD + wrapped : HIGH_LEAD + wrapped + elements])
            watched[-1].zero_()
    return PoolMemory(Pool(key_cache, value_cache, geometry.layout), tuple(part.view(torch.uint8) for part in watched))
