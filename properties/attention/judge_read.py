"""Judges a decode or prefill call: parity, containment, and the variation that must not matter.

The base case runs on a poisoned pool. A row that is wrong there is attributed: to READ-2 if the same call
is right on a clean pool, to READ-4 if it is right in one partition or only the LSE is wrong, to READ-6 if
the row is empty or one token long and longer rows are right, else to READ-1. Then the variation runs; a row
that is wrong there, and was right before, breaks the variation's clause.

Letters: T query tokens, H query heads, D head size.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

from msgspec.structs import replace

from properties.attention import bits, decoys, precision, variations
from properties.attention.buffers import NoRoom
from properties.attention.cases import ReadCase, blocks_needed
from properties.attention.contents import Content
from properties.attention.coverage import offered
from properties.attention.execute import Fault, Refused
from properties.attention.reading import Judge, Reading, Wrong
from properties.attention.scene import Scene
from properties.attention.target import AttentionTarget
from properties.attention.verdict import NOT_HIGH, Verdict
from properties.wording import UNREPEATED, counted

FAULT_PROPERTY = {"load": "READ-2", "store": "STORE-1", "overflow": "READ-3", "crash": "CRASH-1"}


def judge_read(target: AttentionTarget, case: ReadCase, device: str = "cpu") -> Verdict:
    """Judges the case and its variation. The target is called two to four times, more if something is
    wrong.
    """
    judge, verdict = Judge(target, case, device), Verdict()
    _count_case(case, verdict)
    base = judge.read(case, judge.contents)
    _count_judged(judge, base, verdict)
    if not base.right:
        _report_base(judge, base, verdict)
        return verdict
    varied = variations.vary(case, judge.contents, target.capabilities, offered(target))
    if varied is not None:
        _judge_variation(judge, base, varied, verdict)
    return verdict


MAY_BE_REFUSED = frozenset({"strided", "high_stride", "high_count"})
"""Pools with gaps between blocks, or with very many: to decline them is an answer."""


def _judge_variation(judge: Judge, base: Reading, varied: variations.Varied, verdict: Verdict) -> None:
    name = judge.case.variation
    if name == "other_operation":  # a call of its own: attributed as a base case is
        verdict.counts[f"variation {name}"] += 1
        other_judge = Judge(judge.target, varied[0], judge.device)
        reading = other_judge.read(varied[0], other_judge.contents)
        if not reading.right:
            _report_base(other_judge, reading, verdict)
        return
    verdict.counts[f"variation {name}"] += 1
    try:
        other = judge.read(*varied, want_lse=name != "without_lse")
    except NoRoom:
        verdict.counts[NOT_HIGH] += 1
        return
    if isinstance(other.fault, Refused) and name in MAY_BE_REFUSED:
        verdict.counts[f"{name} refused"] += 1
        return
    property_id = variations.PROPERTY_OF[name]
    verdict.judged[property_id] += 1
    intro = f"Right in the base case, wrong with {variations.MEANING[name]}."
    if other.wrong and not other.wrote and all(wrong.row.context_len == 0 for wrong in other.wrong):
        verdict.add("READ-6", f"{EMPTY_ROWS}{_describe(judge, other)}")
        return
    if not other.right:
        if other.wrong and judge.right_when_repeated(*varied, want_lse=name != "without_lse"):
            verdict.add("READ-1", f"{intro}\n{NOT_REPEATED}{_describe(judge, other)}")
            return
        if other.wrong and not other.wrote and judge.leaks(*varied):  # tails that the base case has not
            property_id, intro = "READ-2", f"{intro}\n{_leak(judge, *varied)}".rstrip()
        verdict.add(_property_of_fault(other, property_id), f"{intro}\n{_describe(judge, other)}")
        return
    different = bits.rows_with_other_bits(base, other)
    promise = variations.PROMISED_BITS.get(name)
    if promise in judge.capabilities.promises:
        verdict.judged[str(promise)] += 1
    if not different:
        return
    if promise in judge.capabilities.promises:
        verdict.add(str(promise), bits.broken_promise(judge, base, different, name))
    elif name in variations.SAME_BITS and (leaking := bits.rows_that_leak_a_little(judge, other, name)):
        verdict.add(
            property_id,
            f"Rows {leaking} change within the tolerance with {variations.SAME_BITS[name]}, and do not when the "
            "same call is repeated: those values reach the output with a small weight.",
        )


def _property_of_fault(reading: Reading, otherwise: str | None = None) -> str:
    """The clause that a failed call breaks; `otherwise`: the clause of the variation, which a bad load breaks."""
    if isinstance(reading.fault, Fault):
        load = reading.fault.kind in ("load", "overflow")
        return otherwise if load and otherwise is not None else FAULT_PROPERTY[reading.fault.kind]
    if isinstance(reading.fault, Refused):
        return "CRASH-1"
    return "STORE-1" if reading.wrote else otherwise or "READ-1"


def _report_base(judge: Judge, base: Reading, verdict: Verdict) -> None:
    if not base.wrong:
        property_id, reason = _property_of_fault(base), ""
        told_apart = isinstance(base.fault, Fault) and base.fault.kind in ("crash", "overflow")
        if told_apart and judge.clean_is_right(judge.case, judge.contents):  # an id behind the last block, say
            property_id, reason = "READ-2", _leak(judge, judge.case, judge.contents)
        verdict.add(property_id, reason + _describe(judge, base))
        return
    property_id, reason = _attribute(judge, base)
    verdict.add(property_id, reason + _describe(judge, base))


EMPTY_ROWS = (
    "Only rows of length 0 are wrong, which must give zeros and an LSE of -inf. Declare empty_rows='undefined' if callers "
    "never look at them.\n"
)


NOT_REPEATED = f"Right when the same call is just repeated: {UNREPEATED}.\n"


def _attribute(judge: Judge, base: Reading) -> tuple[str, str]:
    """Which clause a wrong row breaks, found by running nearby cases that differ in one respect."""
    case = judge.case
    if all(wrong.row.context_len == 0 for wrong in base.wrong):
        return "READ-6", EMPTY_ROWS
    wrong_keys = {wrong.row.key for wrong in base.wrong}
    if judge.right_when_repeated(case, judge.contents):  # nothing that is changed below would explain it
        return "READ-1", NOT_REPEATED
    if judge.clean_is_right(case, judge.contents):
        return "READ-2", _leak(judge, case, judge.contents)
    one_partition = replace(case, num_splits=1)
    if case != one_partition and judge.capabilities.num_splits and judge.read(one_partition, judge.contents).right:
        return "READ-4", f"Right in one partition, wrong with num_splits={case.num_splits}.\n"
    flash = replace(case, layout="flash")
    if case != flash and "flash" in judge.capabilities.layouts and judge.read(flash, judge.contents).right:
        return "LAYOUT-1", f"Right in the flash layout, wrong in the {case.layout} layout.\n"
    if all(wrong.what == "lse" for wrong in base.wrong):
        return "READ-4", "The output is right, the LSE is wrong.\n"
    rows = tuple(row for row in case.rows if row.context_len)
    mates_wrong = 0 < len(rows) < len(case.rows) and bool(wrong_keys & {row.key for row in rows})
    if mates_wrong and judge.read(replace(case, rows=rows), judge.contents).right:
        return "BATCH-3", "Right without the padding rows (those of context length 0).\n"
    if len(case.rows) > 1 and all(judge.right_alone(wrong.row) for wrong in base.wrong):
        return "READ-5", "Each of the wrong rows is right when it is alone in the batch.\n"
    long_rows = {row.key for row in case.rows if row.context_len > 1}
    if long_rows and not wrong_keys & long_rows:
        return "READ-6", "Rows with two or more tokens are right.\n"
    return "READ-1", ""


def _leak(judge: Judge, case: ReadCase, contents: Mapping[int, Content]) -> str:
    """Which foreign memory reaches the output: found by poisoning one kind at a time."""
    clean, sources = judge.clean(case), []
    for source, text in (
        ("poison_k", f"keys of slots that no query of the sequence may read (here {case.poison_k})"),
        ("poison_v", f"values of slots that no query of the sequence may read (here {case.poison_v})"),
        ("padding", f"block-table entries behind the last block (here {case.padding})"),
    ):
        alone = replace(clean, **{source: getattr(case, source)})
        if alone != clean and not judge.read(alone, contents).right:
            sources.append(text)
    found = " and ".join(sources) or "their combination"
    return f"Right on a clean pool; what reaches the output: {found}.\n"


def _describe(judge: Judge, reading: Reading) -> str:
    case = reading.scene.case
    lines = [
        f"{case.operation}, block size {case.block_size}, {counted(case.num_blocks, 'block')}, "
        f"{counted(case.num_kv_heads * case.ratio, 'query head')} on "
        f"{counted(case.num_kv_heads, 'KV head')} of {case.head_size}, {case.dtype}, layout {case.layout}"
        f"{f', window {case.window}' if case.window else ''}"
        f"{f', num_splits {case.num_splits}' if case.num_splits else ''}"
    ]
    if reading.fault is not None:
        refused = isinstance(reading.fault, Refused)
        lines.append(f"{judge.target.name} {reading.fault.verb}: {reading.fault.message}")
        if refused:
            lines.append(
                "Narrow its capabilities; where decode and prefill differ in theirs, make two targets of them."
            )
        elif judge.case.variation in MAY_BE_REFUSED and case != judge.case and _crashed(reading):
            lines.append("If that is how it declines such a pool, add the exception's class to `refusals`.")
        return "\n".join(lines)
    if reading.changed_bytes:
        lines.append(
            f"The call changed {counted(reading.changed_bytes, 'byte')} of the pool or around it: a read writes nothing there."
        )
    if reading.changed_queries:
        lines.append(
            f"The call changed {counted(reading.changed_queries, 'byte')} of the queries or around them: they are input."
        )
    for wrong in reading.wrong[:2]:
        lines.append(_describe_row(judge, reading.scene, wrong))
    if len(reading.wrong) > 2:
        lines.append(f"and {len(reading.wrong) - 2} more rows")
    return "\n".join(lines)


def _crashed(reading: Reading) -> bool:
    return isinstance(reading.fault, Fault) and reading.fault.kind == "crash"


def _describe_row(judge: Judge, scene: Scene, wrong: Wrong) -> str:
    row, found = wrong.row, wrong.comparison
    token, head, dimension = found.worst
    table = row.table[: blocks_needed(row.context_len, scene.case.block_size)]
    index = f"[{token}, {head}, {dimension}]" if wrong.what == "out" else f"[{token}, {head}]"
    lines = [
        f"row {row.key}: context {row.context_len}, {counted(row.query_len, 'query')}, blocks {list(table)}: "
        f"{found.num_bad_rows} of {found.num_rows} (token, head) rows of {wrong.what} are wrong",
        f"  worst at {index} (KV head {head // scene.case.ratio}): {found.actual:.6g}, float64 oracle {found.oracle:.6g}",
        f"  max error {found.max_error:.2e}, limit {found.max_limit:.2e} (plain {scene.case.dtype} run: "
        f"{found.baseline_max_error:.2e}); mean error {found.mean_error:.2e}, limit {found.mean_limit:.2e}",
    ]
    if wrong.what == "out":
        expected = judge.expected.get(row.key)
        if expected is not None:
            lines.append(f"  {decoys.explain(scene, row, wrong.actual, expected, tf32=judge.capabilities.tf32)}")
    elif base := _other_base(found.actual / found.oracle if found.oracle else 0.0):
        declared = judge.capabilities.lse_base
        lines.append(
            f"  it is the LSE in base {base}, declared is lse_base={declared!r}: convert it, or declare {base!r}"
        )
    elif row.key in judge.expected:
        content, expected = scene.contents[row.key], judge.expected[row.key]
        text = decoys.explain_lse(scene, row, wrong.actual, expected)
        text = text or precision.hint(scene.case, content, wrong.actual, expected, tf32=judge.capabilities.tf32)
        lines += [f"  {text}"] if text else []
    return "\n".join(lines)


def _other_base(ratio: float) -> str | None:
    """The base that an LSE is in whose ratio to the right one, in base e, is that of the two logarithms."""
    ratios = {"2": 1 / math.log(2), "e": math.log(2)}  # "e" where base 2 is declared: what comes is converted then
    return next((base for base, other in ratios.items() if abs(ratio - other) < 1e-3), None)


def _count_judged(judge: Judge, base: Reading, verdict: Verdict) -> None:
    """Which clauses the base case alone has judged."""
    case, lengths = judge.case, [row.context_len for row in judge.case.rows]
    verdict.judged.update(["READ-1", "READ-5", "CRASH-1", "STORE-1"])
    if judge.capabilities.withstands:
        verdict.judged["READ-2"] += 1
    if case.num_splits not in (None, 1) or (base.output is not None and base.output.lse is not None):
        verdict.judged["READ-4"] += 1
    if min(lengths, default=2) <= 1:
        verdict.judged["READ-6"] += 1
    if 0 in lengths and max(lengths) > 0:
        verdict.judged["BATCH-3"] += 1
    if case.layout != "flash":
        verdict.judged["LAYOUT-1"] += 1


def _count_case(case: ReadCase, verdict: Verdict) -> None:
    verdict.counts[case.operation] += 1
    tables = [row.table[: blocks_needed(row.context_len, case.block_size)] for row in case.rows]
    if any(len(table) >= 3 and any(b != a + 1 for a, b in pairwise(table)) for table in tables):
        verdict.counts[f"{case.operation} with 3 or more permuted blocks"] += 1
    if (case.num_splits or 1) >= 2 and any(row.context_len >= 2 for row in case.rows):
        verdict.counts[f"{case.operation} with 2 or more partitions"] += 1
