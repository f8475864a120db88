"""Shapes of real models as named decode cases: (query heads, KV heads, head size) of each, with blocks of 16 and 256."""

from properties.attention.capabilities import DType
from properties.attention.cases import ReadCase, Row

SHAPES: dict[str, tuple[int, int, int]] = {
    "LLaMA-2-7B": (32, 32, 128),
    "Llama-3-8B": (32, 8, 128),
    "Qwen3-0.6B": (16, 8, 128),
    "Qwen2-7B": (28, 4, 128),
    "Phi-3-mini": (32, 32, 96),
    "Gemma-2B": (8, 1, 256),
    "Falcon-7B": (71, 1, 64),
}
BLOCK_SIZES = (16, 256)


def named_case(model: str, block_size: int, dtype: DType = "float16") -> ReadCase:
    """A decode of two sequences: one ends in the middle of its third block (or second, of 256), one fills a block."""
    query_heads, kv_heads, head_size = SHAPES[model]
    long = 37 if block_size == 16 else 261
    rows = (
        Row(key=0, context_len=long, table=(4, 1, 3)[: -(-long // block_size)]),
        Row(key=1, context_len=block_size, table=(0,)),
    )
    return ReadCase(
        operation="decode",
        rows=rows,
        num_blocks=6,
        block_size=block_size,
        num_kv_heads=kv_heads,
        ratio=query_heads // kv_heads,
        head_size=head_size,
        dtype=dtype,
        seed=block_size,
    )


def named_cases() -> dict[str, ReadCase]:
    """Every one by "model, blocks of size"."""
    return {f"{model}, blocks of {size}": named_case(model, size) for model in SHAPES for size in BLOCK_SIZES}
