"""EVICT-2P must not cry wolf: a block whose parent is rewritten in the same call could no longer be found by then."""

from properties.blocks.operations import Admit, Append, Fork, Free, Geometry, Truncate
from properties.minimise import judge
from properties.specs import spec_of
from properties.targets.ours import OurBlocks


def test_a_parent_that_is_written_again_with_the_same_tokens() -> None:
    """B's second block is cut, forgotten, and filled with what it held: the block behind it was an orphan in between."""
    operations = (
        Admit("A", (0, 0, 0)),
        Free("A"),
        Admit("B", (0, 1, 0, 0, 0, 1, 0, 0, 0)),
        Fork("B", "C"),
        Truncate("B", 5),
        Free("C"),
        Append("B", (1, 0)),
    )

    verdict = judge(spec_of("blocks"), OurBlocks, Geometry(block_size=3, num_blocks=4), operations)

    assert len(verdict.applied) == len(operations)
    assert verdict.breaches == []
