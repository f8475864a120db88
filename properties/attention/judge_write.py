"""Judges store and copy calls bit for bit: the listed slots or blocks hold the exact bits, and no other
byte changed.

Letters: T tokens, B blocks, P block size, G KV heads, D head size, S slots (B * P), L layers.
"""

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from paged_ref.layouts import Layout, unpack_keys, unpack_values
from paged_ref.store import store as reference_store
from properties.attention.buffers import Geometry, NoRoom, PoolMemory, allocate
from properties.attention.cases import CopyCase, StoreCase
from properties.attention.contents import DTYPES
from properties.attention.execute import Fault, Refused, execute
from properties.attention.guarding.protection import writing
from properties.attention.judge_read import FAULT_PROPERTY
from properties.attention.target import AttentionTarget, Pool
from properties.attention.verdict import NOT_HIGH, Verdict
from properties.wording import counted

BITS = {2: torch.int16, 4: torch.int32}


def bits_of(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that every NaN pattern and -0.0 compares by its bits."""
    return tensor.view(BITS[tensor.element_size()])


def _raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _bit_pool(pool: Pool) -> Pool:
    return Pool(bits_of(pool.key_cache), bits_of(pool.value_cache), pool.layout)


def _geometry(case: StoreCase | CopyCase) -> Geometry:
    return Geometry(
        case.num_blocks,
        case.block_size,
        case.num_kv_heads,
        case.head_size,
        DTYPES[case.dtype],
        Layout(case.layout),
    )


def judge_store(target: AttentionTarget, case: StoreCase, device: str = "cpu") -> Verdict:
    """Judges STORE-1, SLOT-3 and LAYOUT-1 on one store call into a pool of random bytes. Any NaN will do for a NaN."""
    verdict = Verdict()
    try:
        memory = allocate(_geometry(case), case.pool_form, device, case.seed)
    except NoRoom:
        verdict.counts[NOT_HIGH] += 1
        return verdict
    verdict.counts["store"] += 1
    verdict.judged.update(["STORE-1", "LAYOUT-1", "CRASH-1", *(["SLOT-3"] if -1 in case.slots else [])])
    keys, values = _payload(case, device)
    slots = torch.tensor(case.slots, dtype=torch.int64, device=device)
    before = memory.snapshot()
    given = {"keys": (keys, keys.clone()), "values": (values, values.clone()), "slots": (slots, slots.clone())}
    protected = writing(memory, case.slots, case.block_size)
    store = target.store  # type: ignore[attr-defined]
    result = execute(target, lambda: store(memory.pool, keys, values, slots), protected, device=device)
    strided = case.query_form != "contiguous" or case.pool_form != "separate"
    if isinstance(result, Refused) and strided:
        verdict.counts["strided refused"] += 1
        return verdict
    where = f"store of {counted(len(case.slots), 'token')} to slots {list(case.slots)}, {_pool_text(case)}"
    if isinstance(result, Fault | Refused):
        property_id = "CRASH-1" if isinstance(result, Refused) else FAULT_PROPERTY[result.kind]
        property_id = "STORE-1" if property_id in ("READ-2", "READ-3") else property_id
        dense = _without_strides(target, case, device) if strided else ""
        verdict.add(property_id, f"{where}\n{target.name} {result.verb}: {result.message}{dense}")
        return verdict
    changed = [name for name, (now, was) in given.items() if not torch.equal(_raw(now), _raw(was))]
    if changed:
        verdict.add("STORE-1", f"{where}\nThe call changed its {' and '.join(changed)}: they are input.")
    keys, values, slots = (was for _, was in given.values())
    keys, values = _with_the_nans_of_their_slots(memory.pool, (keys, values), slots)
    after = memory.snapshot()
    expected = _expected_store(memory, before, keys, values, slots)
    if memory.changed_bytes(after):  # the memory holds what it should hold now: compare with what it held
        property_id, text = _explain_store(case, memory, (keys, values), (before, after, expected), where)
        verdict.add(property_id, f"{text}{_without_strides(target, case, device)}")
    return verdict


def _without_strides(target: AttentionTarget, case: StoreCase, device: str) -> str:
    """A line that says which strides are mistaken, if the call is right without them; "" if it is not."""
    for field, plain, text in (
        ("query_form", "contiguous", "contiguous keys and values: these are slices of a fused projection"),
        ("pool_form", "separate", "dense caches: between the blocks of these there are gaps"),
    ):
        if getattr(case, field) == plain:
            continue
        if not judge_store(target, replace(case, **{field: plain}), device).findings:
            return f"\n  right with {text}, whose strides are others"
    return ""


def _pool_text(case: StoreCase | CopyCase) -> str:
    return (
        f"{counted(case.num_blocks, 'block')} of {case.block_size}, "
        f"{counted(case.num_kv_heads, 'KV head')} of {case.head_size}, {case.dtype}, layout {case.layout}"
    )


def _payload(case: StoreCase, device: str) -> tuple[Tensor, Tensor]:
    """Keys and values [T, G, D] of random bits (NaN payloads, subnormals and infinities among them)."""
    generator = torch.Generator().manual_seed(case.seed + 7)
    dtype, num_tokens, heads = DTYPES[case.dtype], len(case.slots), case.num_kv_heads
    num_heads = 2 * heads + 1 if case.query_form == "fused" else heads
    shape = (2, num_tokens, num_heads, case.head_size * dtype.itemsize)
    random = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(dtype).to(device)
    return random[0][:, -heads:], random[1][:, -heads:]


def _with_the_nans_of_their_slots(pool: Pool, payload: tuple[Tensor, Tensor], slots: Tensor) -> list[Tensor]:
    """Keys and values [T, G, D], each NaN as the pool holds it where that is a NaN, too.

    Which one it is nobody reads, and a store that goes through float32, exact for every number, does not keep it.
    """
    listed, kept = (slots >= 0).cpu(), []
    for tokens, held in zip(payload, _slots_SGD(pool), strict=True):
        bits = bits_of(tokens.cpu().contiguous().clone())
        mine, theirs = bits[listed], held[slots.cpu()[listed]]
        nan = mine.view(tokens.dtype).isnan() & theirs.view(tokens.dtype).isnan()
        bits[listed] = torch.where(nan, theirs, mine)
        kept.append(bits.view(tokens.dtype).to(tokens.device))
    return kept


def _expected_store(
    memory: PoolMemory, before: tuple[Tensor, ...], keys: Tensor, values: Tensor, slots: Tensor
) -> tuple[Tensor, ...]:
    """Puts the memory back as it was, stores by the reference, and returns the bytes. Leaves the memory
    so.
    """
    memory.restore(before)
    pool = _bit_pool(memory.pool)
    reference_store(bits_of(keys), bits_of(values), pool.key_cache, pool.value_cache, slots, layout=pool.layout)
    return memory.snapshot()


def _slots_SGD(pool: Pool) -> tuple[Tensor, Tensor]:
    """Copies of keys and values by slot, as bits, on the CPU."""
    bits = _bit_pool(pool)
    keys, values = unpack_keys(bits.key_cache, pool.layout), unpack_values(bits.value_cache, pool.layout)
    return keys.flatten(0, 1).cpu().clone(), values.flatten(0, 1).cpu().clone()


def _explain_store(
    case: StoreCase,
    memory: PoolMemory,
    payload: tuple[Tensor, Tensor],
    bytes_: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    where: str,
) -> tuple[str, str]:
    """(property, message) for memory that differs from what it should be. `bytes_`: before, after,
    expected.
    """
    views = []
    for state in bytes_:
        for part, old in zip(memory.watched, state, strict=True):
            part.copy_(old)
        views.append(_slots_SGD(memory.pool))
    before, after, expected = views
    lines, property_id = [where], "STORE-1"
    for kind, which in (("key", 0), ("value", 1)):
        tokens, swapped = (bits_of(payload[index]).cpu() for index in (which, 1 - which))
        wrong = (after[which] != expected[which]).flatten(1).any(1).nonzero().flatten().tolist()
        for slot in wrong[:4]:
            text, broken = _explain_slot(case, slot, after[which][slot], before[which][slot], tokens)
            if slot in case.slots and torch.equal(after[which][slot], swapped[case.slots.index(slot)]):
                text = f"holds the {'value' if kind == 'key' else 'key'} of its token"
            lines.append(
                f"  slot {slot} (block {slot // case.block_size}, position {slot % case.block_size}), {kind}: {text}"
            )
            property_id = broken if property_id == "STORE-1" else property_id
        if len(wrong) > 4:
            lines.append(f"  and {len(wrong) - 4} more slots ({kind})")
    if len(lines) == 1:
        changed = sum(int((a != e).sum()) for a, e in zip(bytes_[1], bytes_[2], strict=True))
        lines.append(f"  {counted(changed, 'byte')} outside the pool changed: a store went beyond the cache")
    listed = [slot for slot in case.slots if slot >= 0]
    misplaced = any(not torch.equal(after[which][listed], expected[which][listed]) for which in (0, 1))
    other = _other_layout(case, memory, bytes_[1], expected) if misplaced else None
    if other is not None:
        return "LAYOUT-1", "\n".join([*lines, f"  the memory is right if it is read in the {other} layout"])
    return property_id, "\n".join(lines)


def _explain_slot(case: StoreCase, slot: int, actual: Tensor, before: Tensor, tokens: Tensor) -> tuple[str, str]:
    """(what is wrong with one slot, the clause it breaks)."""
    listed = slot in case.slots
    if listed and torch.equal(actual, before):
        return f"not written, though token {case.slots.index(slot)} goes there", "STORE-1"
    for token, destination in enumerate(case.slots):
        if destination != slot and torch.equal(actual, tokens[token]):
            if destination == -1:
                return f"holds token {token}, whose slot is -1 (padding, not to be written)", "SLOT-3"
            return f"holds token {token}, which goes to slot {destination}", "STORE-1"
    if -1 in case.slots and not listed:
        return (
            "changed, though no token goes there",
            "SLOT-3" if slot == case.num_blocks * case.block_size - 1 else "STORE-1",
        )
    if not listed:
        return f"changed, though no token goes there ({counted(int((actual != before).sum()), 'element')})", "STORE-1"
    wrong = actual != tokens[case.slots.index(slot)]
    heads = wrong.any(1).nonzero().flatten().tolist()
    some = f" in KV head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}" if len(heads) < len(actual) else ""
    unwritten = torch.equal(actual[wrong], before[wrong])
    verb = f"not written{some}" if unwritten else f"holds other bits than its token{some}"
    return f"{verb} ({int(wrong.sum())} of {counted(actual.numel(), 'element')})", "STORE-1"


def _other_layout(
    case: StoreCase, memory: PoolMemory, after: Sequence[Tensor], expected: tuple[Tensor, Tensor]
) -> str | None:
    """The layout in which the written memory would be right, if there is one (dense pools only)."""
    if case.pool_form != "separate":
        return None
    for part, old in zip(memory.watched, after, strict=True):
        part.copy_(old)
    geometry = _geometry(case)
    for layout in Layout:
        if layout is geometry.layout:
            continue
        try:
            shapes = Geometry(
                geometry.num_blocks,
                geometry.block_size,
                geometry.num_kv_heads,
                geometry.head_size,
                geometry.dtype,
                layout,
            ).shapes()
        except ValueError:  # this head size does not pack
            continue
        caches = (memory.pool.key_cache, memory.pool.value_cache)
        views = [cache.reshape(-1).reshape(shape) for cache, shape in zip(caches, shapes, strict=True)]
        keys, values = _slots_SGD(Pool(views[0], views[1], layout))
        listed = [slot for slot in case.slots if slot >= 0]
        if (
            listed
            and torch.equal(keys[listed], expected[0][listed])
            and torch.equal(values[listed], expected[1][listed])
        ):
            return layout.value
    return None


def judge_copy(target: AttentionTarget, case: CopyCase, device: str = "cpu") -> Verdict:
    """Judges COW-2 on one block copy over several layers of random bytes; everything else must stay as it
    was.
    """
    verdict = Verdict()
    verdict.counts["copy_blocks"] += 1
    verdict.judged.update(["COW-2", "CRASH-1"])
    layers = [allocate(_geometry(case), "separate", device, case.seed + 100 * i) for i in range(case.num_layers)]
    before = [layer.snapshot() for layer in layers]
    copy_blocks = target.copy_blocks  # type: ignore[attr-defined]
    result = execute(target, lambda: copy_blocks([layer.pool for layer in layers], list(case.pairs)), device=device)
    where = f"copy of blocks {list(case.pairs)} over {counted(case.num_layers, 'layer')}, {_pool_text(case)}"
    if isinstance(result, Fault | Refused):
        verdict.add("CRASH-1", f"{where}\n{target.name} {result.verb}: {result.message}")
        return verdict
    lines: list[str] = []
    unchained = target.capabilities.copies_chained
    for index, (layer, old) in enumerate(zip(layers, before, strict=True)):
        actual = _bit_pool(layer.pool)
        actual_caches = (actual.key_cache.clone(), actual.value_cache.clone())
        after = layer.snapshot()
        layer.restore(old)
        for source, destination in case.pairs:
            for cache in (actual.key_cache, actual.value_cache):
                cache[destination] = cache[source]
        if layer.changed_bytes(after):
            lines += _explain_copy(case, index, actual, actual_caches)
            unchained &= _are_read_first(case, layer, old, actual_caches)
    if lines and unchained:
        lines.append(
            "  It is as if every source were read before any block is written: copies_chained=False declares that."
        )
    if lines:
        verdict.add("COW-2", "\n".join([where, *lines]))
    return verdict


def _are_read_first(
    case: CopyCase, layer: PoolMemory, before: tuple[Tensor, ...], actual: tuple[Tensor, Tensor]
) -> bool:
    """Whether the caches hold what they would if all sources were read first. Leaves the memory as it was before."""
    layer.restore(before)
    pool = _bit_pool(layer.pool)
    for cache in (pool.key_cache, pool.value_cache):
        read = {destination: cache[source].clone() for source, destination in case.pairs}
        for destination, block in read.items():
            cache[destination] = block
    return torch.equal(pool.key_cache, actual[0]) and torch.equal(pool.value_cache, actual[1])


def _explain_copy(case: CopyCase, layer: int, expected: Pool, actual: tuple[Tensor, Tensor]) -> list[str]:
    lines = []
    destinations = {destination for _, destination in case.pairs}
    for kind, right, cache in zip(("keys", "values"), (expected.key_cache, expected.value_cache), actual, strict=True):
        for block in (right != cache).flatten(1).any(1).nonzero().flatten().tolist():
            what = "was not copied" if block in destinations else "changed, though it is no destination"
            lines.append(f"  layer {layer}, {kind} of block {block}: {what}")
    return lines or [f"  layer {layer}: bytes around the pool changed"]
