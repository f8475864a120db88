"""The shapes that are timed, and their inputs: permuted pages, rotating sets, a float64 check."""

from dataclasses import dataclass

import torch

MIN_ROTATED_BYTES = 400 << 20  # several times the L2 cache of an H200 (50 to 60 MB)


MAX_SETS = 64  # the shortest contexts stay partly in the L2 cache, for every kernel alike


@dataclass(frozen=True)
class Case:
    """pattern: u uniform, r the 0.1/0.4/0.5/1.0/0.2 cycle of context, n random 100..context (nano-vllm's mix). query:
    prefill length."""

    kind: str
    pattern: str
    batch: int
    context: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page: int
    query: int = 1

    @property
    def name(self) -> str:
        heads = f"{self.num_heads}/{self.num_kv_heads}/{self.head_dim}"
        query = f" q{self.query}" if self.kind == "prefill" else ""
        return f"{self.kind} {self.pattern} {self.batch}x{self.context}{query} {heads} page {self.page}"

    def lengths(self) -> list[int]:
        if self.pattern == "u":
            return [self.context] * self.batch
        if self.pattern == "r":
            return [int(self.context * (0.1, 0.4, 0.5, 1.0, 0.2)[index % 5]) for index in range(self.batch)]
        generator = torch.Generator().manual_seed(0)
        return torch.randint(100, self.context + 1, (self.batch,), generator=generator).tolist()

    @property
    def kv_bytes(self) -> int:
        return sum(self.lengths()) * self.num_kv_heads * self.head_dim * 4

    @property
    def flops(self) -> float:
        """Multiply-adds of the visible (query, key) pairs, times two, for both products."""
        pairs = sum(self.query * length - self.query * (self.query - 1) / 2 for length in self.lengths())
        return 4.0 * self.num_heads * self.head_dim * pairs


def _decode(pattern: str, batch: int, context: int, heads: str, pages: tuple[int, ...] = (16, 256)) -> list[Case]:
    num_heads, num_kv_heads, head_dim = (int(part) for part in heads.split("/"))
    return [Case("decode", pattern, batch, context, num_heads, num_kv_heads, head_dim, page) for page in pages]


UNIFORM = [
    case
    for batch, context, heads in (
        (32, 4096, "32/8/128"), (64, 2048, "32/8/128"), (8, 32768, "32/8/128"), (128, 1024, "32/8/128"),
        (16, 4096, "64/8/128"), (32, 4096, "32/32/128"), (32, 4096, "16/8/64"),
    )
    for case in _decode("u", batch, context, heads)
]  # fmt: skip
SINGLE = [
    case
    for batch, context in ((1, 4096), (1, 32768), (1, 131072), (4, 8192))
    for case in _decode("u", batch, context, "32/8/128")
]
RAGGED = _decode("r", 64, 8192, "32/8/128") + _decode("n", 256, 1100, "16/8/128")
PAGES = _decode("u", 32, 4096, "32/8/128", (1, 4, 24, 64))
SHAPES = [
    case
    for heads in ("32/8/96", "16/8/256", "16/8/64", "71/1/64", "28/4/128")
    for case in _decode("u", 64, 4096, heads, (16,))
]
SHORT = [
    case
    for batch in (1, 16, 64, 256)
    for context in (128, 512, 1024)
    for case in _decode("u", batch, context, "32/8/128", (16,))
]
PREFILL = [
    Case("prefill", "u", batch, context, 32, 8, 128, page, query)
    for page in (16, 256)
    for batch, query, context in ((4, 4096, 4096), (8, 512, 8192), (1, 16384, 16384), (32, 512, 512))
]


@dataclass(frozen=True)
class Inputs:
    """One set. table rows beyond the last block hold a valid id (0), because not every peer leaves them unread."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    cu_q: torch.Tensor
    scale: float


def make_inputs(case: Case, seed: int, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Inputs:
    generator = torch.Generator(device=device).manual_seed(seed)
    lens = torch.tensor(case.lengths(), dtype=torch.int32, device=device)
    num_blocks = (lens + case.page - 1) // case.page
    total = int(num_blocks.sum())
    width = -(-int(num_blocks.max()) // 16) * 16
    table = torch.zeros(case.batch, width, dtype=torch.int32, device=device)
    used = torch.arange(width, device=device)[None, :] < num_blocks[:, None]
    table[used] = torch.randperm(total, generator=generator, device=device, dtype=torch.int32)
    shape = (total, case.page, case.num_kv_heads, case.head_dim)
    k_cache = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    v_cache = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    q_shape = (case.batch * case.query, case.num_heads, case.head_dim)
    q = torch.randn(q_shape, generator=generator, device=device, dtype=dtype)
    cu_q = torch.arange(case.batch + 1, dtype=torch.int32, device=device) * case.query
    return Inputs(q, k_cache, v_cache, table, lens, cu_q, case.head_dim**-0.5)


def num_sets(case: Case) -> int:
    """At least two, and enough that all of them together hold MIN_ROTATED_BYTES of keys and values, but no more than
    MAX_SETS."""
    return min(MAX_SETS, max(2, -(-MIN_ROTATED_BYTES // case.kv_bytes)))


def relative_error(case: Case, inputs: Inputs, out: torch.Tensor, max_seqs: int = 4) -> float:
    """Norm of the error over norm of the answer, in float64, over a spread of sequences (and of query rows); NaN if out
    has one."""
    picks = sorted({index * (case.batch - 1) // max(1, max_seqs - 1) for index in range(min(max_seqs, case.batch))})
    error = norm = 0.0
    for seq in picks:
        length = int(inputs.lens[seq])
        rows = torch.unique(torch.linspace(0, case.query - 1, min(case.query, 64), device=out.device).long())
        position = torch.arange(length, device=out.device)
        block = inputs.table[seq, position // case.page].long()
        k = inputs.k_cache[block, position % case.page].double()
        v = inputs.v_cache[block, position % case.page].double()
        for head in range(case.num_heads):
            kv_head = head // (case.num_heads // case.num_kv_heads)
            q = inputs.q[seq * case.query + rows, head].double()
            scores = q @ k[:, kv_head].T * inputs.scale
            hidden = position[None, :] > (length - case.query + rows)[:, None]
            answer = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v[:, kv_head]
            error += float((out[seq * case.query + rows, head].double() - answer).square().sum())
            norm += float(answer.square().sum())
    return (error / norm) ** 0.5
