"""What a run of an attention target must have reached: clauses that apply to it, and kinds of case it must have seen."""

from properties.attention.capabilities import AttentionCapabilities

READS = frozenset({"decode", "prefill"})


def offered(target: object) -> frozenset[str]:
    """The operations that a target offers."""
    return frozenset(n for n in ("store", "decode", "prefill", "copy_blocks") if callable(getattr(target, n, None)))


def applicable(capabilities: AttentionCapabilities, offers: frozenset[str]) -> frozenset[str]:
    """Ids of the clauses that can be judged on a target with these capabilities and operations."""
    found = {"CRASH-1", "CRASH-2"}
    if "store" in offers:
        found |= {"STORE-1", "SLOT-3", "LAYOUT-1"}
    if "copy_blocks" in offers:
        found |= {"COW-2"}
    if offers & READS:
        found |= {"READ-1", "READ-3", "READ-6", "READ-7", "STORE-1", *capabilities.promises}
        if capabilities.withstands:
            found.add("READ-2")
        if capabilities.lse_base is not None or (capabilities.num_splits and "decode" in offers):
            found.add("READ-4")
        if capabilities.max_rows > 1:
            found.add("READ-5")
        if capabilities.empty_rows != "refused":
            found.add("BATCH-3")
        if capabilities.layouts != ("flash",):
            found.add("LAYOUT-1")
    return frozenset(found)


def marks(capabilities: AttentionCapabilities, offers: frozenset[str]) -> frozenset[str]:
    """Kinds of case that must have occurred, or a clean verdict says nothing."""
    found = set(offers)
    for operation in offers & READS:
        if capabilities.max_context >= 3 * min(capabilities.block_sizes):
            found.add(f"{operation} with 3 or more permuted blocks")
    if offers & READS:
        found |= {"variation move", "variation high_stride"}
    if "decode" in offers and capabilities.num_splits:
        found.add("decode with 2 or more partitions")
    return frozenset(found)
