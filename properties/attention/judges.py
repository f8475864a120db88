"""One entry point: judge any attention case on any target. Nothing else decides what is right."""

from collections.abc import Collection

import msgspec

from properties.attention.capabilities import AttentionCapabilities, Shape
from properties.attention.cases import AttentionCase, ReadCase, StoreCase, why_malformed
from properties.attention.coverage import offered
from properties.attention.judge_read import judge_read
from properties.attention.judge_write import judge_copy, judge_store
from properties.attention.target import AttentionTarget
from properties.attention.verdict import Verdict
from properties.contract import UsageError
from properties.torch_defaults import keep_ours, theirs


def judge(target: AttentionTarget, case: AttentionCase, device: str = "cpu") -> Verdict:
    """Runs the case and returns what is wrong with it.

    Raises UsageError for a malformed case or one that the target does not accept, AdapterError where the adapter
    breaks its own protocol.
    """
    unfit = why_unfit(target, case)
    if unfit is not None:
        raise UsageError(f"the case is none for target {target.name}: {unfit}")
    reset = getattr(target, "open", None)
    if reset is not None:
        with theirs(target):
            reset()
    keep_ours(target)
    if isinstance(case, ReadCase):
        problem = why_malformed(case)
        if problem is not None:
            raise UsageError(f"the case contradicts itself: {problem}")
        return judge_read(target, case, device)
    if isinstance(case, StoreCase):
        return judge_store(target, case, device)
    return judge_copy(target, case, device)


def operation_of(case: AttentionCase) -> str:
    """The operation of the target that a case calls."""
    if isinstance(case, ReadCase):
        return case.operation
    return "store" if isinstance(case, StoreCase) else "copy_blocks"


def shape_of(case: ReadCase) -> Shape:
    """The geometry of a read, as targets declare it that take few."""
    names = [field.name for field in msgspec.structs.fields(Shape)]
    return Shape(**{name: getattr(case, name) for name in names})


def why_unfit(target: AttentionTarget, case: AttentionCase) -> str | None:
    """Why the case is not one for this target (what it lacks or does not declare), or None."""
    declared, operations = target.capabilities, offered(target)
    if operation_of(case) not in operations:
        return f"it has no {operation_of(case)}: it offers {', '.join(sorted(operations))}"
    if isinstance(case, ReadCase) and declared.shapes:
        if shape_of(case) not in declared.shapes:
            return f"it takes none but its declared shapes, not {shape_of(case)}"
        return _why_unfit_read(declared, case)
    limits: list[tuple[str, object, Collection[object]]] = [
        ("dtype", case.dtype, declared.dtypes),
        ("block_size", case.block_size, declared.block_sizes),
        ("num_kv_heads", case.num_kv_heads, declared.kv_heads),
        ("head_size", case.head_size, declared.head_sizes),
        ("layout", case.layout, declared.layouts if isinstance(case, ReadCase) else declared.layouts_of_store),
    ]
    if isinstance(case, ReadCase):
        limits.append(("ratio", case.ratio, declared.ratios))
    for name, value, accepted in limits:
        if value not in accepted:
            return f"it does not declare {name}={value}; declared: {', '.join(map(str, accepted))}"
    return _why_unfit_read(declared, case) if isinstance(case, ReadCase) else None


def _why_unfit_read(declared: AttentionCapabilities, case: ReadCase) -> str | None:
    undeclared = {
        "a window": case.window is not None and not declared.window,
        "a number of partitions": case.num_splits is not None and not declared.num_splits,
        "a scale": case.scale is not None and not declared.any_scale,
        f"a context over {declared.max_context}": any(r.context_len > declared.max_context for r in case.rows),
        "rows of length 0": declared.empty_rows == "refused" and any(r.context_len == 0 for r in case.rows),
        f"table padding {case.padding}": case.padding not in declared.padding,
        f"poison {case.poison_k}": case.poison_k not in (*declared.withstands, "zero"),
        f"poison {case.poison_v}": case.poison_v not in (*declared.withstands, "zero"),
    }
    missing = [what for what, lacks in undeclared.items() if lacks]
    return f"it does not take {', '.join(missing)}" if missing else None
