"""`PagedKVCache` as a user meets it: a step, what is refused, and the order of copies."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from paged_impl.block_manager import Copy
from paged_impl.cache import PagedKVCache
from paged_impl.errors import OutOfBlocks
from paged_impl.step import Row, Step, independent
from paged_impl.transformers_client import attention

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 16


def make(**options: object) -> PagedKVCache:
    """A small cache of blocks of four tokens."""
    settings: dict[str, object] = {"num_blocks": 8, "block_size": 4, **options}
    return PagedKVCache(num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM, **settings)  # type: ignore[arg-type]


def qkv(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values."""
    return (
        torch.randn(num_tokens, HEADS, DIM),
        torch.randn(num_tokens, KV_HEADS, DIM),
        torch.randn(num_tokens, KV_HEADS, DIM),
    )


def compute(cache: PagedKVCache, step: Step) -> None:
    """Random KV in every layer, and commit."""
    for layer in range(LAYERS):
        cache.write(layer, *qkv(step.num_tokens + step.num_padding)[1:], step)
    cache.commit(step)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by torch, queries at the end of the context."""
    group = HEADS // KV_HEADS
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), *(t.repeat_interleave(group, 1).transpose(0, 1) for t in (k, v)), attn_mask=mask
    )
    return out.transpose(0, 1)


def test_a_prompt_in_two_chunks_and_a_decode_step() -> None:
    cache = make()
    q, k, v = qkv(11)
    cache.admit("a", range(10))
    steps = [[Row("a", 0, 6)], ["a"], ["a"]]
    bounds = [(0, 6), (6, 10), (10, 11)]

    for rows, (start, stop) in zip(steps, bounds, strict=True):
        if start == 10:
            cache.append("a", [7])
        step = cache.plan(rows)
        for layer in range(LAYERS):
            cache.write(layer, k[start:stop] + layer, v[start:stop] - layer, step)
            out = cache.attend(layer, q[start:stop], step)
            torch.testing.assert_close(out, dense(q[start:stop], k[:stop] + layer, v[:stop] - layer))
        assert step.positions.tolist() == list(range(start, stop))
        cache.commit(step)


def test_a_step_names_its_tokens_and_where_each_row_samples() -> None:
    cache = make()
    cache.admit("a", [3, 1, 4])
    cache.admit("b", [1, 5])

    step = cache.plan(["b", "a"], pad_to=8)

    assert step.input_ids.tolist() == [1, 5, 3, 1, 4, 0, 0, 0]
    assert step.last_tokens.tolist() == [1, 4]
    assert step.slot_mapping.tolist() == [4, 5, 0, 1, 2, -1, -1, -1]
    assert step.num_padding == 3


def test_padding_gives_zeros_and_writes_nothing() -> None:
    cache = make()
    cache.pools.fill_(7.0)
    cache.admit("a", [1, 2])
    step = cache.plan(["a"], pad_to=4)
    q, k, v = qkv(4)

    cache.write(0, k, v, step)

    assert bool((cache.attend(0, q, step)[2:] == 0).all())
    assert bool((cache.pools[:, 0].flatten(1, 2)[:, 2:] == 7.0).all()), "slots 0 and 1 are the sequence's"
    assert bool((cache.pools[:, 1] == 7.0).all())


def test_copies_are_cut_where_order_matters() -> None:
    def on_device(*pairs: tuple[int, int]) -> list[Copy]:
        return [Copy(src, dst, "device", "device") for src, dst in pairs]

    chain, two = on_device((0, 1), (1, 2), (5, 1)), on_device((0, 1), (0, 2), (3, 0))
    mixed = [Copy(1, 1, "device", "host"), Copy(1, 1, "host", "device"), Copy(2, 3, "device", "device")]

    assert [len(group) for group in independent(chain)] == [1, 2]
    assert [len(group) for group in independent(two)] == [3]
    assert [len(group) for group in independent(mixed)] == [1, 1, 1]
    assert list(independent([])) == []


def test_a_chain_of_copies_runs_in_order() -> None:
    cache = make()
    cache.pools[:] = torch.arange(8.0)[:, None, None, None]
    cache.manager._copies = [
        Copy(0, 1, "device", "device"),
        Copy(1, 2, "device", "device"),
        Copy(3, 0, "device", "device"),
    ]

    cache._changed()

    assert cache.pools[1, 1, :4, 0, 0, 0].tolist() == [3.0, 0.0, 0.0, 3.0]


def test_an_append_after_a_fork_copies_every_layer() -> None:
    cache = make()
    cache.admit("a", range(6))
    compute(cache, cache.plan(["a"]))
    told: list[Copy] = []
    cache.on_copies = told.extend

    cache.fork("a", "b")
    cache.append("b", [9])

    (copy,) = told
    assert torch.equal(cache.pools[:, :, copy.src_block], cache.pools[:, :, copy.dst_block])
    assert cache.manager.table("a")[1] == copy.src_block
    assert cache.manager.table("b")[1] == copy.dst_block


def test_a_preempted_sequence_returns_its_tokens() -> None:
    cache = make()
    cache.admit("a", [1, 2, 3])

    assert cache.preempt("a") == [1, 2, 3]
    assert cache.manager.num_free == 8


def test_a_refused_append_changes_nothing() -> None:
    cache = make(num_blocks=2)
    cache.admit("a", range(8))
    step = cache.plan(["a"])

    with pytest.raises(OutOfBlocks):
        cache.append("a", [1])
    compute(cache, step)  # the step still holds


# ---- what is refused, with argument, value and limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"block_size": 0}, "block_size=0"),
        ({"num_host_blocks": -1}, "num_host_blocks=-1"),
        ({"window": 0}, "window=0"),
        ({"num_blocks": 1.5}, r"num_blocks=1\.5: expected a whole number"),
        ({"num_blocks": 2**63}, "num_blocks=9223372036854775808 is too large"),
        ({"block_size": "4"}, "block_size='4': expected a whole number"),
        ({"num_host_blocks": None}, "num_host_blocks=None"),
        ({"window": True}, "window=True"),
        ({"dtype": "float32"}, "dtype='float32': KV is floating point"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"hash_fn": 3}, "hash_fn=3"),
        ({"backend": None}, "backend=None"),
        ({"dtype": torch.int8}, "dtype=torch.int8"),
        ({"backend": "tritn"}, r"backend='tritn': known are 'auto', 'triton'"),
        ({"backend": "torch-varlen", "dtype": torch.float16}, "device=cpu: backend='torch-varlen' runs on CUDA only"),
    ],
)
def test_a_cache_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def planned() -> tuple[PagedKVCache, Step]:
    cache = make()
    cache.admit("a", range(5))
    return cache, cache.plan(["a"])


REFUSALS: dict[str, tuple[Callable[[PagedKVCache, Step], object], str]] = {
    "a layer too many": (lambda c, s: c.write(2, *qkv(5)[1:], s), r"layer=2 is outside 0\.\.1"),
    "a token too few": (lambda c, s: c.write(0, *qkv(4)[1:], s), r"key\.shape=\(4, 2, 16\): expected \(5, 2, 16\)"),
    "values of another shape": (lambda c, s: c.write(0, qkv(5)[1], qkv(4)[2], s), r"value\.shape=\(4, 2, 16\)"),
    "another dtype": (lambda c, s: c.write(0, *(t.half() for t in qkv(5)[1:]), s), r"key\.dtype=torch\.float16"),
    "another device": (lambda c, s: c.write(0, *(t.to("meta") for t in qkv(5)[1:]), s), r"key\.device=meta"),
    "a strided last dimension": (
        lambda c, s: c.write(0, torch.randn(5, 2, 32)[:, :, ::2], qkv(5)[2], s),
        r"key\.stride\(-1\)=2",
    ),
    "heads that do not divide": (lambda c, s: c.attend(0, torch.randn(5, 3, 16), s), r"a multiple of the 2 KV heads"),
    "queries of two dimensions": (lambda c, s: c.attend(0, torch.randn(5, 16), s), r"query\.shape=\(5, 16\)"),
    "a query too many": (lambda c, s: c.attend(0, torch.randn(6, 4, 16), s), r"query\.shape=\(6, 4, 16\)"),
    "a negative scale": (lambda c, s: c.attend(0, qkv(5)[0], s, scale=-1.0), r"scale=-1\.0"),
    "a commit before every layer": (
        lambda c, s: (c.write(0, *qkv(5)[1:], s), c.commit(s)),
        r"layers \[1\] of this step are not written",
    ),
    "a row that skips": (lambda c, s: c.plan([Row("a", 1, 3)]), r"0 tokens are computed, so the next row starts there"),
    "a row behind the end": (lambda c, s: c.plan([Row("a", 0, 6)]), r"ends behind its 5 tokens"),
    "an empty row": (lambda c, s: c.plan([Row("a", 0, 0)]), r"row \[0, 0\) of 'a' is empty"),
    "one sequence twice": (lambda c, s: c.plan([Row("a", 0, 2), Row("a", 0, 2)]), r"sequence 'a' has two rows"),
    "a query of what is not computed": (lambda c, s: c.plan_query(["a"]), r"does not lie in its 0 computed tokens"),
    "a write of what was computed": (
        lambda c, s: (compute(c, s), c.write(0, *qkv(1)[1:], c.plan_query(["a"]))),
        r"reads computed positions: use plan\(\) to write",
    ),
    "an unknown sequence": (lambda c, s: c.plan(["z"]), r"'z'"),
    "a step of before": (
        lambda c, s: (c.admit("b", [1]), c.write(0, *qkv(5)[1:], s)),
        r"planned before the last change",
    ),
    "a step that was committed": (lambda c, s: (compute(c, s), c.attend(0, qkv(5)[0], s)), r"Plan again"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_call_that_is_refused(what: str) -> None:
    cache, step = planned()
    call, message = REFUSALS[what]

    with pytest.raises((ValueError, KeyError), match=message):
        call(cache, step)


def everything(cache: PagedKVCache) -> tuple[object, ...]:
    """All that a call could change."""
    m, names = cache.manager, ("a", "b", "s")
    rows = [(m.tokens(n), m.table(n), m.host_table(n), m.num_computed(n)) for n in names]
    bits = [pool.view(torch.int32).clone().tolist() for pool in (cache.pools, cache.host_pools)]
    return rows, m.free_blocks(), m.cached_blocks(), m.num_free_host, m.num_copies, bits


NOT_NUMBERS = (1.5, "1", None, True, [1], torch.tensor(1))
NOT_TENSORS = (None, 3, [1.0], np.zeros((5, 2, 16), np.float32))
BAD_CALLS: dict[str, tuple[Callable[[PagedKVCache, Step], object], str]] = {
    **{f"truncate to {x!r}": (lambda c, s, x=x: c.truncate("a", x), "num_tokens=") for x in (*NOT_NUMBERS, -1, 99)},
    **{f"pad to {x!r}": (lambda c, s, x=x: c.plan(["b"], pad_to=x), "pad_to=") for x in (*NOT_NUMBERS, -1, 2**31)},
    **{f"row from {x!r}": (lambda c, s, x=x: c.plan([Row("b", x, 5)]), "start of the row of 'b'=") for x in NOT_NUMBERS},
    **{f"row to {x!r}": (lambda c, s, x=x: c.plan_query([Row("a", 0, x)]), "stop of the row") for x in NOT_NUMBERS},
    **{f"layer {x!r}": (lambda c, s, x=x: c.layer(x), "layer=") for x in (*NOT_NUMBERS, -1, 2)},
    **{f"write to {x!r}": (lambda c, s, x=x: c.write(x, *qkv(5)[1:], s), "layer=") for x in (*NOT_NUMBERS, -1, 2)},
    **{f"keys {x!r}": (lambda c, s, x=x: c.write(0, x, qkv(5)[2], s), r"key\.shape=") for x in NOT_TENSORS},
    **{f"values {x!r}": (lambda c, s, x=x: c.write(0, qkv(5)[1], x, s), r"value\.shape=") for x in NOT_TENSORS},
    **{f"query {x!r}": (lambda c, s, x=x: c.attend(0, x, s), r"query\.shape=") for x in NOT_TENSORS},
    **{
        f"scale {x!r}": (lambda c, s, x=x: c.attend(0, qkv(5)[0], s, scale=x), "scale=")
        for x in (0, -1.0, float("nan"), float("inf"), "1", 10**400)
    },
    **{f"step {x!r}": (lambda c, s, x=x: c.commit(x), "step=") for x in (None, 3, "s")},
    **{f"salt {x!r}": (lambda c, s, x=x: c.admit("n", [1], x), "salt of type") for x in (1.5, [1], torch.zeros(2000))},
    **{f"tokens {x!r}": (lambda c, s, x=x: c.append("a", x), "tokens|token") for x in ("ab", [None], [2**63], 3, [])},
    **{f"rows {x!r}": (lambda c, s, x=x: c.plan(x), "rows=") for x in ("b", None, 3, Row("b", 0, 5))},
    **{
        f"{method} with a name that is none": (lambda c, s, m=method, a=more: getattr(c, m)([1], *a), "cannot be a name")
        for method, more in (
            ("admit", ([1],)), ("append", ([1],)), ("fork", ("n",)), ("truncate", (0,)), ("free", ()), ("preempt", ()),
            ("swap_out", ()), ("swap_in", ()),
        )
    },
    "a fork to no name": (lambda c, s: c.fork("a", {}), "cannot be a name"),
    "sparse keys": (lambda c, s: c.write(0, qkv(5)[1].to_sparse(), qkv(5)[2], s), r"key\.layout=torch\.sparse_coo"),
    "a swap of what is swapped": (lambda c, s: c.swap_out("s"), "is swapped out"),
    "a swap of what is here": (lambda c, s: c.swap_in("a"), "is not swapped out"),
    "a second end": (lambda c, s: c.free("z"), "no sequence is called 'z'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_refused_call_says_what_and_changes_nothing(what: str) -> None:
    cache = make(num_host_blocks=4)
    cache.pools.zero_(), cache.host_pools.zero_()
    for name in ("a", "s"):
        cache.admit(name, range(5))
        compute(cache, cache.plan([name]))
    cache.swap_out("s")
    cache.admit("b", range(20, 25))
    step, before = cache.plan(["b"]), everything(cache)
    call, message = BAD_CALLS[what]

    with pytest.raises((ValueError, KeyError), match=message):
        call(cache, step)

    assert everything(cache) == before
    compute(cache, step)  # the step still holds


def test_a_step_of_another_cache_is_refused() -> None:
    """Even of one with the very same history."""
    (one, _), (_, step) = planned(), planned()
    keys, values = qkv(5)[1:]

    for call in (lambda: one.write(0, keys, values, step), lambda: one.commit(step)):
        with pytest.raises(ValueError, match="or by another cache"):
            call()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.zeros(1)}, "takes no mask of its own"),
        ({"attention_mask": None, "softcap": 30.0}, r"softcap=30\.0: a paged causal read has none .soft capping"),
        ({"attention_mask": None, "s_aux": torch.zeros(2)}, "s_aux: a paged causal read has none .attention sinks"),
        ({"attention_mask": None, "dropout": 0.1}, r"dropout=0\.1: .*call model\.eval"),
        ({"attention_mask": None, "is_causal": False}, "is_causal=False: "),
        ({"attention_mask": None, "position_bias": torch.zeros(2)}, "position_bias: "),
        (
            {"attention_mask": None, "sliding_window": 6},
            "sliding_window=6: the cache has window=None.*window=6 if every",
        ),
    ],
)
def test_what_the_attention_of_transformers_cannot_honour(given: dict[str, object], message: str) -> None:
    cache, step = planned()
    q, k, v = (t.transpose(0, 1)[None] for t in qkv(5))

    with pytest.raises(ValueError, match=message):
        attention(None, q, k, v, scaling=0.25, paged_cache=cache, paged_step=step, **given)  # type: ignore[arg-type]


def test_a_swapped_sequence_has_no_step() -> None:
    cache = make(num_host_blocks=4)
    cache.admit("a", range(5))
    compute(cache, cache.plan(["a"]))
    cache.swap_out("a")

    with pytest.raises(ValueError, match="swapped out"):
        cache.plan_query(["a"])


def test_a_position_that_the_window_released_is_not_read() -> None:
    cache = make(window=2)
    cache.admit("a", range(10))
    compute(cache, cache.plan(["a"]))

    with pytest.raises(ValueError, match="the window has released"):
        cache.plan_query([Row("a", 0, 10)])
    assert cache.attend(0, qkv(1)[0], cache.plan_query(["a"])).shape == (1, HEADS, DIM)


def test_stale_steps_are_told_by_value_not_by_identity() -> None:
    cache, step = planned()
    cache.admit("b", [1])

    with pytest.raises(ValueError, match="Plan again"):
        cache.attend(0, qkv(5)[0], replace(step))
