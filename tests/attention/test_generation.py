"""The generator keeps to the declaration and to its habits: cases that tell much, evenly spread."""

from collections import Counter

from msgspec.structs import replace

from properties.attention.cases import AttentionSetting, CopyCase, ReadCase, StoreCase, blocks_needed, why_malformed
from properties.attention.coverage import offered
from properties.attention.generate import READ_VARIATIONS, AttentionMaker
from properties.attention.judges import why_unfit
from properties.attention.targets.plain import PlainTorch
from properties.drive import below_of

TARGET = PlainTorch()


def _cases(
    count: int, operations: frozenset[str] = frozenset({"decode", "prefill", "store", "copy_blocks"})
) -> list[object]:
    return [
        AttentionMaker(below_of(seed), AttentionSetting(), TARGET.capabilities, operations).next(None)
        for seed in range(count)
    ]


def test_every_case_is_well_formed_and_within_the_declaration() -> None:
    cases = _cases(1500)

    for case in cases:
        assert isinstance(case, ReadCase | StoreCase | CopyCase)
        assert why_unfit(TARGET, case) is None
        assert not isinstance(case, ReadCase) or why_malformed(case) is None
    assert {type(case) for case in cases} == {ReadCase, StoreCase, CopyCase}


def test_reads_have_the_habits_that_find_bugs() -> None:
    reads = [case for case in _cases(1500, frozenset({"decode", "prefill"})) if isinstance(case, ReadCase)]
    seen: Counter[str] = Counter()
    for case in reads:
        lengths = [row.context_len for row in case.rows]
        tables = [row.table[: blocks_needed(row.context_len, case.block_size)] for row in case.rows]
        seen["identity"] += all(table == tuple(range(len(table))) for table in tables)
        seen["descending"] += any(len(table) > 1 and table == tuple(sorted(table, reverse=True)) for table in tables)
        seen["empty row"] += 0 in lengths
        seen["one token"] += 1 in lengths
        seen["full block"] += any(length and length % case.block_size == 0 for length in lengths)
        seen["one over"] += any(length % case.block_size == 1 for length in lengths if case.block_size > 1)
        seen["shared prefix"] += any(row.shared_blocks for row in case.rows)
        seen["stale entries"] += any(len(row.table) > len(table) for row, table in zip(case.rows, tables, strict=True))
        seen["ratio no power of two"] += case.ratio in (3, 5, 7)
        seen["keys and values apart"] += case.poison_k != case.poison_v
        seen["window"] += case.window is not None

    share = {name: count / len(reads) for name, count in seen.items()}
    assert share["identity"] < 0.15
    assert all(share[name] > 0.05 for name in seen if name != "identity"), share


def test_variations_are_evenly_spread() -> None:
    drawn = Counter(case.variation for case in _cases(3200, frozenset({"decode"})) if isinstance(case, ReadCase))

    assert set(drawn) == set(READ_VARIATIONS)
    assert min(drawn.values()) > 0.5 * 3200 / len(READ_VARIATIONS)


def test_the_cost_limit_bounds_rows_times_heads_times_partitions() -> None:
    capabilities = replace(TARGET.capabilities, max_programs=6, max_rows=3)
    for seed in range(500):
        case = AttentionMaker(below_of(seed), AttentionSetting(), capabilities, frozenset({"decode"})).next(None)
        assert isinstance(case, ReadCase)
        assert len(case.rows) * case.num_kv_heads * (case.num_splits or 1) <= 6


def test_the_plain_target_offers_everything() -> None:
    assert offered(TARGET) == {"decode", "prefill", "store", "copy_blocks"}
