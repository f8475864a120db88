"""One entry point: judge any attention case on any target. Nothing else decides what is right."""

from properties.attention.cases import AttentionCase, CopyCase, ReadCase, StoreCase, why_malformed
from properties.attention.judge_read import judge_read
from properties.attention.judge_write import judge_copy, judge_store
from properties.attention.target import AttentionTarget, offers
from properties.attention.verdict import Verdict
from properties.contract import UsageError


def judge(target: AttentionTarget, case: AttentionCase, device: str = "cpu") -> Verdict:
    """Runs the case and returns what is wrong with it.

    Raises UsageError for a malformed case or an operation that the target lacks, AdapterError where the
    adapter breaks its own protocol.
    """
    operation = (
        case.operation if isinstance(case, ReadCase) else {StoreCase: "store", CopyCase: "copy_blocks"}[type(case)]
    )
    if operation not in offers(target):
        raise UsageError(f"target {target.name} has no {operation}: it offers {', '.join(sorted(offers(target)))}")
    reset = getattr(target, "open", None)
    if reset is not None:
        reset()
    if isinstance(case, ReadCase):
        problem = why_malformed(case)
        if problem is not None:
            raise UsageError(f"the case contradicts itself: {problem}")
        return judge_read(target, case, device)
    if isinstance(case, StoreCase):
        return judge_store(target, case, device)
    return judge_copy(target, case, device)
