"""What might a wrong output be? Hypotheses ("decoys") are computed from the pool and compared with it.

A decoy is dense attention over the slots that a faulty implementation would have read: an identity table, a
neighbour's page, one token less or more, another KV head, another mask or scale. The one that the output
equals is named in the finding; where none fits, the nearest is.

Letters: T query tokens, N context tokens, H query heads, G KV heads, D head size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_ref.dense import exact_attention, expand_heads, score_sums, softmax, visible, weighted_values
from paged_ref.parity import Expected
from properties.attention import precision, softmaxes
from properties.attention.cases import ReadCase, Row, blocks_needed
from properties.attention.scene import Scene

# A decoy "fits" when the output is as near to it as a correct output is to the oracle, with room for its
# own limits.
FIT_FACTOR = 2.0
CLOSER = 0.5
"""What is not closer to the output than so many times the right answer is no explanation."""
NEAR = 10.0
"""What is so many limits away from the output is no hint."""
MOST_TOKENS = 512
"""In longer contexts it is not looked for the one token that is left out."""
MOST_TOLD = 4
"""Mistakes that are named where several give the same output."""


@dataclass(frozen=True)
class Reading:
    """How a row is read: `slots` of the pool in order, the KV head of each query head, the mask and the
    scale.
    """

    slots: tuple[int, ...]
    kv_head_of: tuple[int, ...]
    seen: Tensor
    scale: float


def _seen(scene: Scene, row: Row, *, num_keys: int | None = None, lead: int = 0, window: int | None = None) -> Tensor:
    """The mask [T, N] of a row; `lead` shifts what each query sees by that many tokens."""
    num_keys = row.context_len if num_keys is None else num_keys
    own = torch.arange(row.query_len)[:, None] + (row.context_len - row.query_len) + lead
    key = torch.arange(num_keys)[None, :]
    seen = key <= own
    return seen if window is None else seen & (key > own - window)


def explain(scene: Scene, row: Row, actual_THD: Tensor, expected: Expected, *, tf32: bool = False) -> str:
    """One line: which decoy the row's output equals, what its precision is, or which decoy comes nearest.

    `actual_THD` on the CPU; `tf32`: what the target declares.
    """
    actual = actual_THD.double()
    if bool(actual.isnan().all()):
        return "every value is NaN"
    if bool((actual == 0).all()):
        return "the output is zero everywhere"
    limit_TH = FIT_FACTOR * expected.max_limit_TH
    away = float((actual - expected.oracle.out_THD).abs().nan_to_num(nan=torch.inf).max())
    nearest, nearest_excess = "", torch.inf
    fits: list[tuple[str, float]] = []
    for name, decoy in _outputs(scene, row):
        same_nan = decoy.isnan() & actual.isnan()
        errors_TH = (actual - decoy).abs().masked_fill(same_nan, 0.0).nan_to_num(nan=torch.inf).amax(2)
        if float(errors_TH.max()) > CLOSER * away:
            continue  # it explains nothing: the right answer is as near
        if bool((errors_TH <= limit_TH).all()):
            fits.append((name, float(errors_TH.max())))
        excess = float((errors_TH / limit_TH.clamp_min(1e-300)).max())
        if excess < nearest_excess:
            nearest, nearest_excess = name, excess
    fits = fits or list(_one_token_left_out(scene, row, actual, limit_TH, CLOSER * away))
    if fits:
        return _told(fits)
    if not bool(actual.isfinite().all()):
        return f"{int((~actual.isfinite()).sum())} of {actual.numel()} values are NaN or infinite"
    if imprecise := precision.hint(scene.case, scene.contents[row.key], actual_THD, expected, tf32=tf32):
        return imprecise
    if nearest_excess > NEAR:
        return f"{precision.NONE_KNOWN}, or one near it"
    return f"{precision.NONE_KNOWN}; nearest, and {nearest_excess:.1f} times too far: {nearest}"


def _outputs(scene: Scene, row: Row) -> Iterator[tuple[str, Tensor]]:
    """Each known mistake by name, and the output [T, H, D] that it gives."""
    for name, reading in _decoys(scene, row):
        yield name, _read(scene, row, reading)
    yield from softmaxes.mistaken(scene, row)


def _one_token_left_out(
    scene: Scene, row: Row, actual_THD: Tensor, limit_TH: Tensor, most: float
) -> Iterator[tuple[str, float]]:
    """Each token without which the output is the same, and the largest difference."""
    case, content = scene.case, scene.contents[row.key]
    if not 0 < row.context_len <= MOST_TOKENS or not actual_THD.numel():
        return
    seen_TN = visible(row.query_len, row.context_len, window=case.window)
    exact = exact_attention(content.q, content.k, content.v, scale=case.effective_scale, seen_TN=seen_TN)
    v_NHD = expand_heads(exact.v, actual_THD.shape[1])
    for position in range(row.context_len):
        weight_TH1 = exact.weights_HTN[:, :, position].T[..., None]
        without_THD = (exact.result.out_THD - weight_TH1 * v_NHD[position]) / (1 - weight_TH1)
        errors_TH = (actual_THD - without_THD).abs().nan_to_num(nan=torch.inf).amax(2)
        if bool((errors_TH <= limit_TH).all()) and float(errors_TH.max()) <= most:
            block = row.table[position // case.block_size]
            yield f"token {position} of the context left out (block {block})", float(errors_TH.max())


def explain_lse(scene: Scene, row: Row, actual_TH: Tensor, expected: Expected) -> str:
    """What else than the LSE it is, in one line; "" where that is not known. `actual_TH` on the CPU, in base e."""
    content, scale = scene.contents[row.key], scene.case.effective_scale
    if not content.q.numel() or not content.k.numel():
        return ""
    hidden_TN = ~_seen(scene, row, window=scene.case.window)
    sums_HTN = score_sums(content.q.double(), content.k.double()).masked_fill(hidden_TN, -torch.inf)
    largest_TH, right_TH = (scale * sums_HTN).amax(2).T, expected.oracle.lse_TH
    others = {
        "the largest score: the logarithm of the sum is missing": largest_TH,
        "the logarithm of the sum alone: the largest score is missing": right_TH - largest_TH,
        "that with the opposite sign": -right_TH,
    }
    for name, other_scale in _other_scales(scene.case):
        others[f"that of scores with {name}"] = torch.logsumexp(other_scale * sums_HTN, 2).T
    for cap in softmaxes.CAPS:
        capped_HTN = softmaxes.capped(scale * sums_HTN, cap)
        others[f"that of scores with a soft cap of {cap:g}"] = torch.logsumexp(capped_HTN, 2).T
    away = float((actual_TH.double() - right_TH).abs().nan_to_num(nan=torch.inf).max())
    for name, other_TH in others.items():
        errors_TH = (actual_TH.double() - other_TH).abs().nan_to_num(nan=torch.inf)
        if bool((errors_TH <= FIT_FACTOR * expected.lse_limit_TH).all()) and float(errors_TH.max()) <= CLOSER * away:
            return f"the LSE is {name}"
    return ""


def _told(fits: list[tuple[str, float]]) -> str:
    """Every mistake that gives this output: a small case may not tell them apart."""
    names = [name for name, _ in fits]
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    apart = "; this case does not tell them apart" if len(names) > 1 else ""
    return (
        f"the output is that of: {', or '.join(names[:MOST_TOLD])}{more} (largest difference {fits[0][1]:.1e}{apart})"
    )


def _read(scene: Scene, row: Row, reading: Reading) -> Tensor:
    """The output [T, H, D] of a reading, in float64; NaN where a poisoned slot takes part."""
    keys, values = (t.double().flatten(0, 1)[list(reading.slots)] for t in (scene.keys, scene.values))
    heads = list(reading.kv_head_of)
    q = scene.contents[row.key].q.double()
    scores_HTN = reading.scale * score_sums(q, keys[:, heads])
    weights_HTN, _ = softmax(scores_HTN.masked_fill(~reading.seen, -torch.inf))
    return weighted_values(weights_HTN, values[:, heads]).transpose(0, 1)


def _decoys(scene: Scene, row: Row) -> Iterator[tuple[str, Reading]]:
    """Every hypothesis about the row, by name."""
    case, size = scene.case, scene.case.block_size
    ratio, num_kv_heads, num_heads = case.ratio, case.num_kv_heads, case.ratio * case.num_kv_heads
    own_heads = tuple(h // ratio for h in range(num_heads))
    own = tuple(row.table[p // size] * size + p % size for p in range(row.context_len))
    scale, window, length = case.effective_scale, case.window, row.context_len
    usual = _seen(scene, row, window=window)

    def slots(name: str, chosen: tuple[int, ...], **mask: int) -> Iterator[tuple[str, Reading]]:
        if chosen and all(0 <= slot < case.num_blocks * size for slot in chosen):
            yield (
                name,
                Reading(chosen, own_heads, _seen(scene, row, num_keys=len(chosen), window=window, **mask), scale),
            )

    needed = blocks_needed(length, size)
    yield from slots("the last token dropped", own[:-1])
    yield from slots("the first token dropped", own[1:], lead=-1)
    if length % size:
        stale = own[-1] + 1
        yield from slots(f"one stale token added (slot {stale}, behind the context)", (*own, stale), lead=1)
        tail = tuple(range(stale, (own[-1] // size + 1) * size))
        yield from slots("the unwritten tail of the last block included", own + tail, lead=len(tail))
    if 0 < row.query_len < length:
        yield from slots(
            "the cached prefix left out (only the queries' own tokens)",
            own[-row.query_len :],
            lead=row.query_len - length,
        )
    yield from slots("an identity block table (blocks 0, 1, 2, ...)", tuple(range(length)))
    if needed > 1:
        first = row.table[0] * size
        yield from slots(
            "the blocks behind the first one in the pool, not those of the table", tuple(range(first, first + length))
        )
    for other in case.rows:
        if other.key != row.key and len(other.table) >= needed:
            foreign = tuple(other.table[p // size] * size + p % size for p in range(length))
            yield from slots(f"the block table of row {other.key}", foreign)
    for index in range(needed):
        block = row.table[index]
        dropped = tuple(slot for slot in own if slot // size != block)
        yield from slots(f"block {block} (logical block {index}) left out", dropped, lead=len(dropped) - length)
        for other_block in range(case.num_blocks):
            if other_block != block and needed <= 8 and case.num_blocks <= 16:
                swapped = tuple(other_block * size + slot % size if slot // size == block else slot for slot in own)
                yield from slots(f"block {other_block} read in place of block {block} (logical {index})", swapped)
    yield from _head_decoys(own, own_heads, num_kv_heads, usual, scale)
    yield from _mask_decoys(scene, row, own, own_heads, scale)
    for name, other_scale in _other_scales(case):
        if own:
            yield name, Reading(own, own_heads, usual, other_scale)


def _other_scales(case: ReadCase) -> Iterator[tuple[str, float]]:
    """Scales that a case might be taken to have, and has not."""
    scale, padded = case.effective_scale, 1 << (case.head_size - 1).bit_length()
    for name, other in (
        ("a scale of 1", 1.0),
        ("a scale of head_size ** -0.5", case.head_size**-0.5),
        ("the scale applied twice", scale * scale),
        ("base 2 for base e in the softmax", scale * 0.6931471805599453),
    ):
        if other != scale:
            yield name, other
    if padded != case.head_size:
        yield f"a scale of {padded} ** -0.5 (the padded head size)", padded**-0.5


def _head_decoys(
    own: tuple[int, ...], own_heads: tuple[int, ...], num_kv_heads: int, seen: Tensor, scale: float
) -> Iterator[tuple[str, Reading]]:
    num_heads = len(own_heads)
    mappings = {
        "KV head h % num_kv_heads for query head h": tuple(h % num_kv_heads for h in range(num_heads)),
        "the next KV head": tuple((g + 1) % num_kv_heads for g in own_heads),
        "KV head 0 for every query head": (0,) * num_heads,
        "KV head min(h, last) for query head h": tuple(min(h, num_kv_heads - 1) for h in range(num_heads)),
    }
    for name, mapping in mappings.items():
        if own and mapping != own_heads:
            yield name, Reading(own, mapping, seen, scale)


def _mask_decoys(
    scene: Scene, row: Row, own: tuple[int, ...], own_heads: tuple[int, ...], scale: float
) -> Iterator[tuple[str, Reading]]:
    if not own or not row.query_len:
        return
    window = scene.case.window
    masks: dict[str, Tensor] = {}
    if window is not None:
        masks["a window one token too wide"] = _seen(scene, row, window=window + 1)
        masks["a window one token too narrow"] = _seen(scene, row, window=window - 1)
        masks["the window ignored"] = _seen(scene, row)
    if row.query_len < row.context_len:
        top_left = row.query_len - row.context_len
        masks["the causal mask aligned at the top left"] = _seen(scene, row, lead=top_left, window=window)
    if row.query_len > 1:
        masks["each query sees the token after it"] = _seen(scene, row, lead=1, window=window)
        masks["no query sees its own token"] = _seen(scene, row, lead=-1, window=window)
        masks["no causal mask"] = _seen(scene, row, lead=row.context_len)
    for name, seen in masks.items():
        yield name, Reading(own, own_heads, seen, scale)
