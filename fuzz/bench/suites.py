"""The sets of cases: what the scripts in benchmarks/ measure, and the readable choice of it that `pagefault bench` shows."""

from __future__ import annotations

from fuzz.bench.cases import AnyCase, Case, StoreCase, parse

SUITES = ("decode", "prefill", "store")


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
ALONE = [
    case
    for heads in ("28/4/128", "71/1/64", "16/8/256", "16/2/128", "8/1/128")
    for case in _decode("u", 1, 32768, heads, (16,))
]
FEW = [
    case
    for batch, context in ((4, 8192), (8, 32768), (16, 4096))
    for case in _decode("r", batch, context, "32/8/128", (16,))
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
DECODE = {
    "uniform": UNIFORM, "single": SINGLE, "ragged": RAGGED, "alone": ALONE, "few": FEW, "pages": PAGES, "shapes": SHAPES,
    "short": SHORT,
}  # fmt: skip
PREFILL = [
    Case("prefill", "u", batch, context, 32, 8, 128, page, query)
    for page in (16, 256)
    for batch, query, context in ((4, 4096, 4096), (8, 512, 8192), (1, 16384, 16384), (32, 512, 512))
]
STORE = [StoreCase(num_tokens, 8, 128, 256) for num_tokens in (8192, 131072)]

_ON_A_GPU = {
    "decode": (
        "32x4096x32/8/128/p16", "32x4096x32/8/128/p256", "128x1024x32/8/128/p16", "8x32768x32/8/128/p16",
        "32x4096x32/32/128/p16", "32x4096x16/8/64/p16",
        "64x8192x32/8/128/p16/ragged", "256x1100x16/8/128/p16/mix",
        "1x4096x32/8/128/p16", "1x32768x32/8/128/p16", "1x131072x32/8/128/p16",
        "16x128x32/8/128/p16", "64x512x32/8/128/p16",
    ),
    "prefill": ("4x4096x32/8/128/p16/q4096", "8x8192x32/8/128/p16/q512", "4x4096x32/8/128/p256/q4096"),
    "store": ("8192x8/128/p256", "131072x8/128/p256"),
}  # fmt: skip
_ON_A_CPU = {
    "decode": (
        "8x512x8/2/64/p16", "8x1024x8/2/64/p16/ragged", "16x400x8/2/64/p16/mix", "1x4096x8/2/64/p16", "16x64x8/2/64/p16",
    ),
    "prefill": ("2x256x8/2/64/p16/q128",),
    "store": ("4096x2/64/p16",),
}  # fmt: skip


def default_cases(suites: tuple[str, ...], device: str, dtype: str, *, quick: bool) -> list[AnyCase]:
    """The cases of these suites; quick: the first of each."""
    table = _ON_A_CPU if device == "cpu" else _ON_A_GPU
    return [parse(text, dtype) for suite in suites for text in table[suite][: 1 if quick else None]]
