"""What is timed: one decode, prefill or store call, named by a short text that can be given on the command line.

32x4096x32/8/128/p16            decode: 32 sequences of 4096 tokens, 32 query heads on 8 KV heads of 128, blocks of 16
64x8192x32/8/128/p16/ragged     lengths 0.1, 0.4, 0.5, 1.0, 0.2 of 8192, over and over
256x1100x16/8/128/p16/mix       lengths drawn from 100..1100 (the mix of nano-vllm's benchmark)
8x8192x32/8/128/p16/q512        prefill: 512 queries at the end of each context, causal
8192x8/128/p256                 store: 8192 tokens of 8 KV heads of 128, scattered over twice as many slots
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
PATTERNS = {"uniform": "u", "ragged": "r", "mix": "n"}
RAGGED = (0.1, 0.4, 0.5, 1.0, 0.2)
MIX_LEAST = 100

MOST = {
    "sequences": 65536,
    "tokens": 1 << 24,
    "heads": 1024,
    "head size": 1024,
    "block size": 65536,
    "queries": 1 << 24,
}
"""Beyond these a number is a slip of the keyboard."""


class BadCase(ValueError):
    """A text that names no case; the message says what is wrong with it and how one looks."""


@dataclass(frozen=True)
class Case:
    """A read. pattern: u uniform, r ragged, n mix. page: tokens per block. query: queries of each sequence (decode: 1)."""

    kind: str
    pattern: str
    batch: int
    context: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page: int
    query: int = 1
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """In full, as the records of benchmarks/results have it."""
        heads = f"{self.num_heads}/{self.num_kv_heads}/{self.head_dim}"
        query = f" q{self.query}" if self.kind == "prefill" else ""
        return f"{self.kind} {self.pattern} {self.batch}x{self.context}{query} {heads} page {self.page}"

    @property
    def text(self) -> str:
        """As it is given on the command line; `parse` is the inverse."""
        query = f"/q{self.query}" if self.kind == "prefill" else ""
        pattern = {"u": "", "r": "/ragged", "n": "/mix"}[self.pattern]
        heads = f"{self.num_heads}/{self.num_kv_heads}/{self.head_dim}"
        return f"{self.batch}x{self.context}x{heads}/p{self.page}{query}{pattern}"

    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        if self.pattern == "u":
            return [self.context] * self.batch
        if self.pattern == "r":
            return [max(1, int(self.context * RAGGED[index % len(RAGGED)])) for index in range(self.batch)]
        generator = torch.Generator().manual_seed(0)
        least = min(MIX_LEAST, self.context)
        return torch.randint(least, self.context + 1, (self.batch,), generator=generator).tolist()

    @property
    def num_blocks(self) -> int:
        """Blocks that hold all sequences."""
        return sum(-(-length // self.page) for length in self.lengths())

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of all tokens: what a decode must read."""
        return sum(self.lengths()) * self.num_kv_heads * self.head_dim * 2 * ITEMSIZES[self.dtype]

    @property
    def bytes_moved(self) -> int:
        """What the rate counts."""
        return self.kv_bytes

    @property
    def set_bytes(self) -> int:
        """Memory of one set of inputs with its output: whole blocks, queries, output."""
        elements = self.num_blocks * self.page * self.num_kv_heads * self.head_dim * 2
        elements += self.batch * self.query * self.num_heads * self.head_dim * 2
        return elements * ITEMSIZES[self.dtype]

    @property
    def flops(self) -> float:
        """Multiply-adds of the visible (query, key) pairs, times two, for both products."""
        pairs = sum(self.query * length - self.query * (self.query - 1) / 2 for length in self.lengths())
        return 4.0 * self.num_heads * self.head_dim * pairs


@dataclass(frozen=True)
class StoreCase:
    """A store of num_tokens tokens, scattered over a pool of twice as many slots."""

    num_tokens: int
    num_kv_heads: int
    head_dim: int
    page: int
    dtype: str = "bfloat16"
    kind: str = "store"

    @property
    def name(self) -> str:
        """As the records of benchmarks/results have it."""
        return f"store {self.num_tokens} x {self.num_kv_heads} x {self.head_dim}"

    @property
    def text(self) -> str:
        """As it is given on the command line."""
        return f"{self.num_tokens}x{self.num_kv_heads}/{self.head_dim}/p{self.page}"

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return -(-2 * self.num_tokens // self.page)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values."""
        return self.num_tokens * self.num_kv_heads * self.head_dim * 2 * ITEMSIZES[self.dtype]

    @property
    def bytes_moved(self) -> int:
        """What the rate counts: each byte is read and written."""
        return 2 * self.kv_bytes

    @property
    def set_bytes(self) -> int:
        """Memory of one set: the tokens and the pool."""
        pool = self.num_blocks * self.page * self.num_kv_heads * self.head_dim * 2 * ITEMSIZES[self.dtype]
        return pool + self.kv_bytes


AnyCase = Case | StoreCase

_SHAPES = (
    "give SEQUENCESxTOKENSxQUERY_HEADS/KV_HEADS/HEAD_SIZE/pBLOCK_SIZE with /ragged, /mix or /qQUERIES behind it if need be, "
    "for example 32x4096x32/8/128/p16, or TOKENSxKV_HEADS/HEAD_SIZE/pBLOCK_SIZE for a store"
)
_READ = re.compile(
    r"(?P<sequences>\d+)x(?P<tokens>\d+)x(?P<heads>\d+)/(?P<kv>\d+)/(?P<size>\d+)/p(?P<page>\d+)"
    r"(?:/q(?P<queries>\d+))?(?:/(?P<pattern>uniform|ragged|mix))?",
    re.ASCII,
)
_STORE = re.compile(r"(?P<tokens>\d+)x(?P<kv>\d+)/(?P<size>\d+)/p(?P<page>\d+)", re.ASCII)


def parse(text: str, dtype: str = "bfloat16") -> AnyCase:
    """The case of that text. Raises `BadCase`.

    >>> parse("8x8192x32/8/128/p16/q512").text
    '8x8192x32/8/128/p16/q512'
    >>> parse("8192x8/128/p256").kind
    'store'
    """
    read, store = _READ.fullmatch(text), _STORE.fullmatch(text)
    if read is None and store is None:
        negative = " (no number may be negative)" if re.search(r"(^|[x/pq])-\d", text) else ""
        raise BadCase(f"{text!r} names no case{negative}: {_SHAPES}")
    found = (read or store).groupdict()  # type: ignore[union-attr]
    number = {key: int(value) for key, value in found.items() if value and key != "pattern"}
    limits = {
        "sequences": "sequences", "tokens": "tokens", "heads": "heads", "kv": "heads", "size": "head size",
        "page": "block size", "queries": "queries",
    }  # fmt: skip
    for key, value in number.items():
        what = limits[key]
        if not 1 <= value <= MOST[what]:
            raise BadCase(f"{text!r}: {what} {value} is out of range: give 1 to {MOST[what]}")
    if read is None:
        return StoreCase(number["tokens"], number["kv"], number["size"], number["page"], dtype)
    return _read_case(text, number, found["pattern"] or "uniform", dtype)


def _read_case(text: str, number: dict[str, int], pattern: str, dtype: str) -> Case:
    if number["heads"] % number["kv"]:
        raise BadCase(
            f"{text!r}: {number['heads']} query heads cannot share {number['kv']} KV heads: "
            "the first must be a multiple of the second"
        )
    queries = number.get("queries")
    case = Case(
        "decode" if queries is None else "prefill", PATTERNS[pattern], number["sequences"], number["tokens"],
        number["heads"], number["kv"], number["size"], number["page"], queries or 1, dtype,
    )  # fmt: skip
    shortest = min(case.lengths())
    if case.query > shortest:
        raise BadCase(
            f"{text!r}: {case.query} queries in a context of {shortest} tokens: give at most {shortest} with /q"
        )
    return case
