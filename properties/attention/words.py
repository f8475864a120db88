"""A case as a person would say it, for reports. Plain data, no torch."""

from properties.attention.cases import CopyCase, ReadCase, Row, StoreCase, blocks_needed
from properties.wording import counted

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
        f"{counted(case.num_blocks, 'block')} of {case.block_size}, "
        f"{counted(case.num_kv_heads, 'KV head')} of {case.head_size}, {case.dtype}"
    )
    pool += f", layout {case.layout}" if case.layout != "flash" else ""
    if isinstance(case, StoreCase):
        return (
            f"store {counted(len(case.slots), 'token')} in slots {list(case.slots)} ({pool}, "
            f"{case.pool_form}, {case.query_form} keys)"
        )
    if isinstance(case, CopyCase):
        pairs = ", ".join(f"{source} to {destination}" for source, destination in case.pairs)
        return f"copy block {pairs} in {counted(case.num_layers, 'layer')} ({pool})"
    rows = "; ".join(_row(row, case.block_size, case.operation) for row in case.rows)
    heads = counted(case.num_kv_heads * case.ratio, "query head")
    extras = [
        f"window {case.window}" if case.window is not None else "",
        counted(case.num_splits, "partition") if case.num_splits is not None else "",
        f"scale {case.scale:g}" if case.scale is not None else "",
        f"unowned slots hold {case.poison_k} keys and {case.poison_v} values",
    ]
    text = f"{case.operation}: {rows} ({heads}, {pool}; {', '.join(extra for extra in extras if extra)})"
    return f"{text}, then with {VARIED[case.variation]}" if case.variation != "none" else text


def _row(row: Row, block_size: int, operation: str) -> str:
    needed = blocks_needed(row.context_len, block_size)
    blocks = " ".join(map(str, row.table[:needed])) or "none"
    if row.table[needed:]:
        blocks += f" (behind them in its table {' '.join(map(str, row.table[needed:]))})"
    queries = f"{counted(row.query_len, 'query')} at the end of " if operation == "prefill" else ""
    shared = f", {row.shared_blocks} shared with row {row.parent}" if row.shared_blocks else ""
    return f"row {row.key}: {queries}{counted(row.context_len, 'token')} in blocks {blocks}{shared}"
