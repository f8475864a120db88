"""A case as a person would say it, for reports. Plain data, no torch."""

from properties.attention.cases import CopyCase, ReadCase, Row, StoreCase, blocks_needed

VARIED = {
    "repoison": "other values in unowned slots",
    "wider_table": "a wider block table",
    "move": "the tokens moved to other blocks",
    "high_stride": "block id x stride beyond 2**31",
    "high_count": "block ids from 65536 on",
    "block_size": "another block size",
    "splits": "another number of partitions",
    "without_lse": "no LSE asked for",
    "order": "the rows in another order",
    "alone": "one row alone",
    "again": "the same call once more",
    "pad": "padding rows in between",
    "strided": "strided queries and pool",
    "rescale": "queries / 8, scale x 8",
    "other_operation": "the other operation (decode / prefill)",
}


def in_words(case: ReadCase | StoreCase | CopyCase) -> str:
    """One line; settings at their usual value are left out."""
    pool = (
        f"{case.num_blocks} blocks of {case.block_size}, {case.num_kv_heads} KV heads of {case.head_size}, {case.dtype}"
    )
    pool += f", layout {case.layout}" if case.layout != "flash" else ""
    if isinstance(case, StoreCase):
        return f"store {len(case.slots)} tokens in slots {list(case.slots)} ({pool}, {case.pool_form}, {case.query_form} keys)"
    if isinstance(case, CopyCase):
        pairs = ", ".join(f"{source} to {destination}" for source, destination in case.pairs)
        return f"copy block {pairs} in {case.num_layers} layers ({pool})"
    rows = "; ".join(_row(row, case.block_size, case.operation) for row in case.rows)
    heads = f"{case.num_kv_heads * case.ratio} query heads"
    extras = [
        f"window {case.window}" if case.window is not None else "",
        f"{case.num_splits} partitions" if case.num_splits is not None else "",
        f"scale {case.scale:g}" if case.scale is not None else "",
        f"unowned slots hold {case.poison_k} keys and {case.poison_v} values",
    ]
    text = f"{case.operation}: {rows} ({heads}, {pool}; {', '.join(extra for extra in extras if extra)})"
    return f"{text}, then with {VARIED[case.variation]}" if case.variation != "none" else text


def _row(row: Row, block_size: int, operation: str) -> str:
    blocks = " ".join(map(str, row.table[: blocks_needed(row.context_len, block_size)])) or "none"
    queries = f"{row.query_len} queries at the end of " if operation == "prefill" else ""
    shared = f", {row.shared_blocks} shared with row {row.parent}" if row.shared_blocks else ""
    return f"row {row.key}: {queries}{row.context_len} tokens in blocks {blocks}{shared}"
