"""No false alarm on sound managers of many designs, and each declaration of theirs is needed or does no harm."""

import msgspec
import pytest

from properties.blocks.operations import Admit, Append, Fork, Free, Geometry, Truncate
from properties.contract import AdapterError
from properties.minimise import judge
from tests.targets import zoo
from tests.targets.hunt import SPEC, Hunt, breaches


@pytest.mark.parametrize("make", zoo.ALL, ids=lambda make: make.__name__)
def test_a_sound_design_is_clean(make):
    hunt = Hunt(make, num_seeds=250)
    rare, never = hunt.unreached()

    assert hunt.found == {}
    assert never == []
    assert min(rare.values(), default=1000) >= 25  # SWAP-1: a swap needs host blocks and nothing shared


def without(make, **plain):
    """The same design, with declarations taken back to their careful defaults."""
    return type(make.__name__, (make,), {"capabilities": msgspec.structs.replace(make.capabilities, **plain)})


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (without(zoo.LooksAhead, look_ahead=0), "ALLOC-6"),
        (without(zoo.KeepsSomeFree, watermark_blocks=0), "ALLOC-6"),
        (without(zoo.Sound, cached_overlaps_free=False), "ALLOC-1"),
        (without(zoo.CopiesEverythingAtTheFork, copy_at_fork=False), "ALLOC-6"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_is_not_declared_is_judged(make, clause):
    assert clause in Hunt(make, num_seeds=250, until=[clause]).found


def test_a_null_block_that_is_not_declared_is_the_adapters_fault():
    with pytest.raises(AdapterError, match=r"right after open\(\) .* block 0 is neither free"):
        SPEC.referee(without(zoo.HasANullBlock, reserved_blocks=())(), Geometry(block_size=1, num_blocks=3))


def test_copies_that_follow_a_release_are_performed():
    trace = [Admit("A", (0,)), Admit("B", (1,)), Free("A"), Append("B", (0,))]

    class Forgets(zoo.Compacts):
        """A broken one: it moves the block, and never says so."""

        def copies(self):
            return []

    assert breaches(zoo.Compacts, Geometry(block_size=1, num_blocks=3), trace) == {}
    assert "CONTENT-1" in breaches(Forgets, Geometry(block_size=1, num_blocks=3), trace)


def test_a_fork_and_a_truncation_may_need_as_many_blocks_as_they_copy():
    full = Geometry(block_size=1, num_blocks=3)

    assert breaches(zoo.CopiesEverythingAtTheFork, full, [Admit("A", (0, 0)), Fork("A", "B")]) == {}
    assert (
        breaches(
            zoo.TruncatesLazily, Geometry(block_size=2, num_blocks=3), [Admit("A", (0, 0, 0, 0)), Truncate("A", 1)]
        )
        == {}
    )


def test_a_fork_that_is_refused_for_nothing_is_found():
    class NeverForks(zoo.CopiesOnWrite):
        def fork(self, parent, child):
            raise zoo.NoRoom("no reason")

    found = breaches(NeverForks, Geometry(block_size=2, num_blocks=3), [Admit("A", (0, 0)), Fork("A", "B")])

    assert set(found) == {"ALLOC-6"}


def test_a_call_that_releases_what_it_wrote_is_the_adapters_fault():
    """Nobody saw where it was written, so nothing about it could be judged any more."""

    class Hasty(zoo.SlidesFirst):
        def append(self, name, tokens):
            super().append(name, tokens)
            self.release_outside(name, len(self.tokens[name]))

    geometry = Geometry(block_size=1, num_blocks=4, window=1)
    verdict = judge(SPEC, Hasty, geometry, [Admit("A", (0,)), Append("A", (1, 2, 3))])

    assert "right after the call that wrote it" in str(verdict.adapter)
    assert breaches(zoo.SlidesFirst, geometry, [Admit("A", (0,)), Append("A", (1, 2, 3)), Append("A", (1,))]) == {}


def test_a_release_inside_the_window_is_a_finding_all_the_same():
    class Short(zoo.Slides):
        def computed(self, name, upto):
            super().computed(name, upto)
            self.release_outside(name, upto + 2)

    geometry = Geometry(block_size=1, num_blocks=4, window=3)

    assert "WINDOW-1" in breaches(Short, geometry, [Admit("A", (0, 1)), Append("A", (1, 2))])


def test_half_of_the_split_forms_is_none():
    """A helper of the adapter's own that is called allocate is not driven as one."""
    geometry = Geometry(block_size=1, num_blocks=4, window=2)

    assert breaches(zoo.SlidesAtTheEnd, geometry, [Admit("A", (0, 1)), Append("A", (1,))]) == {}
