"""What an adapter may declare or split so that its implementation is judged as it is meant: each seen to be needed."""

import sys
from pathlib import Path

import msgspec
import pytest

from properties.blocks.operations import Admit, Allocate, Append, Computed, Fork, Free, Geometry, Preempt, Resume
from properties.targets import load
from tests.targets.hunt import SPEC, Hunt, breaches

Tiny = load(f"{Path(__file__).with_name('tiny_target.py')}:Tiny").make
TinyManager = sys.modules[Tiny.__module__].TinyManager
GEOMETRY = Geometry(block_size=2, num_blocks=8)


def declare(target, **changes):
    """The same adapter with other capabilities."""
    return type(target.__name__, (target,), {"capabilities": msgspec.structs.replace(target.capabilities, **changes)})


class Sound(TinyManager):
    """The tiny manager without its bug: a block is known by its whole prefix."""

    def _key(self, tokens, start):
        return tuple(tokens[: start + self.block_size])


class SoundTiny(Tiny):
    """The tiny adapter over it, with the split forms offered one by one in the classes below."""

    manager_class = Sound

    def open(self, config):
        super().open(config)
        self.manager = self.manager_class(config.num_blocks, config.block_size)


class DeDuplicates(Sound):
    """Publishing replaces a block by an equal one that is known already."""

    def publish(self, name, tokens):
        super().publish(name, tokens)
        table = self.tables[name]
        for index in range(len(tokens) // self.block_size):
            twin = self.known[self._key(tokens, index * self.block_size)]
            if twin != table[index]:
                self.refs[twin] += 1
                self._drop(table[index])
                table[index] = twin

    def _drop(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.append(block)


class DeDuplicatesByTokens(DeDuplicates):
    """A wrong one: blocks with the same tokens count as equal, whatever is before them."""

    def _key(self, tokens, start):
        return (start, *tokens[start : start + self.block_size])


class Halves(SoundTiny):
    """Offers allocate, extend and computed, so that admit and append are driven as their halves."""

    manager_class = DeDuplicates

    def allocate(self, name, tokens):
        cached = self.manager.allocate(name, tokens)
        self.tokens[name] = list(tokens)
        return cached

    def extend(self, name, tokens):
        self.manager.grow(name, len(self.tokens[name]) + len(tokens))
        self.tokens[name] += tokens

    def computed(self, name, upto):
        self.manager.publish(name, self.tokens[name][:upto])


class WrongHalves(Halves):
    manager_class = DeDuplicatesByTokens


@pytest.mark.parametrize("make", [SoundTiny, Halves])
def test_what_is_sound_is_clean(make):
    hunt = Hunt(make, num_seeds=1200)

    assert hunt.found == {}
    assert hunt.unreached() == ({}, [])


def test_de_duplication_needs_the_halves():
    """Seen only before and after, a block that was replaced looks like a write into a shared block."""

    class Whole(SoundTiny):
        manager_class = DeDuplicates

    twins = [Admit("A", (0, 1)), Admit("B", (0, 1))]

    assert "SLOT-2" in breaches(Whole, GEOMETRY, twins)
    assert breaches(Halves, GEOMETRY, twins) == {}


def test_a_wrong_de_duplication_is_found_by_what_is_read():
    found = breaches(WrongHalves, GEOMETRY, [Admit("A", (0, 0, 1, 1)), Admit("B", (2, 2, 1, 1))])

    assert "sequence B, position 2" in found["CONTENT-1"]
    assert "given up by B for an equal block" not in found["CONTENT-1"]  # that block is another's now


def test_the_history_of_a_block_says_that_it_was_given_up():
    trace = [Allocate("A", (0, 1)), Allocate("B", (0, 1)), Computed("A", 2), Computed("B", 2)]

    referee = SPEC.referee(Halves(), GEOMETRY)
    outcomes = [referee.apply(operation) for operation in trace]
    given_up = [block for block in range(8) if "given up by B" in referee.state.shadow.history(block)]

    assert outcomes == ["done"] * 4
    assert len(given_up) == 1
    assert given_up[0] in referee.target.free_blocks()


def test_a_hit_of_everything_is_no_finding_where_hits_are_recomputed():
    class FullHits(SoundTiny):
        def admit(self, name, tokens):
            longer = [*tokens, 0]  # so that no token is left over
            cached = super().admit(name, longer)
            self.tokens[name].pop()
            return cached

    trace = [Admit("A", (0, 1, 2)), Admit("B", (0, 1))]

    assert set(breaches(FullHits, GEOMETRY, trace)) == {"HASH-4"}
    assert breaches(declare(FullHits, recomputes_hits=True), GEOMETRY, trace) == {}


def test_appends_keep_to_the_declared_number_of_tokens():
    lengths = []

    class OneByOne(declare(SoundTiny, max_append=1)):
        def append(self, name, tokens):
            lengths.append(len(tokens))
            super().append(name, tokens)

    assert Hunt(OneByOne, num_seeds=100).found == {}
    assert set(lengths) == {1}
    assert SPEC.referee(OneByOne(), GEOMETRY).apply(Append("A", (0, 1))) == "illegal"


def test_a_prediction_is_judged_only_where_it_is_promised():
    class Predicts(SoundTiny):
        def predict_append(self, name, num_tokens):
            return 1

    trace = [Admit("A", (0,)), Append("A", (1,))]  # into the block that A has

    assert breaches(Predicts, GEOMETRY, trace) == {}
    assert set(breaches(declare(Predicts, promises=frozenset({"ALLOC-4P"})), GEOMETRY, trace)) == {"ALLOC-4P"}


def test_preemption_has_its_own_method_where_it_is_offered():
    calls = []

    class Preempts(SoundTiny):
        def preempt(self, name):
            calls.append(name)
            self.free(name)

    trace = [Admit("A", (0, 1)), Preempt("A"), Resume("A"), Free("A")]

    assert breaches(Preempts, GEOMETRY, trace) == {}
    assert calls == ["A"]


def test_a_fork_that_copies_at_once_has_no_copy_to_count_later():
    class Forks(SoundTiny):
        def fork(self, parent, child):
            raise NotImplementedError

        def can_append(self, name, num_tokens):
            raise NotImplementedError

    offers = SPEC.offered(Forks())

    assert "COW-4" in SPEC.applicable(Forks.capabilities, offers)
    assert "COW-4" not in SPEC.applicable(declare(Forks, copy_at_fork=True).capabilities, offers)
    assert {Fork, Append} <= set(SPEC.maker(lambda n: 0, GEOMETRY, Forks.capabilities, offers).kinds)
