"""store(): the named slots hold the exact bits, and nothing else of the pool has changed."""

import pytest
import torch

from paged_impl.kernels import store

BLOCKS, BLOCK_SIZE, HEADS, DIM, TOKENS = 7, 5, 3, 24, 20


def pool(dtype: torch.dtype, packed: bool, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    chunk = 16 // dtype.itemsize
    shapes = (
        ((BLOCKS, HEADS, DIM // chunk, BLOCK_SIZE, chunk), (BLOCKS, HEADS, DIM, BLOCK_SIZE))
        if packed
        else ((BLOCKS, BLOCK_SIZE, HEADS, DIM),) * 2
    )
    k_cache, v_cache = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
    return k_cache, v_cache


def tokens(dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Slices of one projection, every bit pattern among them: NaNs with payloads, subnormals, both zeros."""
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    bits = torch.randint(torch.iinfo(integer).min, torch.iinfo(integer).max, (TOKENS, 2, HEADS, DIM), dtype=integer)
    projection = bits.view(dtype).to(device)
    return projection[:, 0], projection[:, 1]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["flash layout", "packed layout"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_writes_the_exact_bits_and_nothing_else(
    dtype: torch.dtype, packed: bool, slot_dtype: torch.dtype, device: str
) -> None:
    k_cache, v_cache = pool(dtype, packed, device)
    key, value = tokens(dtype, device)
    slots = torch.randperm(BLOCKS * BLOCK_SIZE)[:TOKENS]
    slots[3] = slots[11] = -1
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, BLOCK_SIZE)
        if slot >= 0 and packed:
            expected_k[block, :, :, offset] = key[token].reshape(HEADS, -1, 16 // dtype.itemsize)
            expected_v[block, :, :, offset] = value[token]
        elif slot >= 0:
            expected_k[block, offset], expected_v[block, offset] = key[token], value[token]

    store(key, value, k_cache, v_cache, slots.to(slot_dtype).to(device))

    assert torch.equal(bits_of(k_cache), bits_of(expected_k))
    assert torch.equal(bits_of(v_cache), bits_of(expected_v))


@pytest.mark.parametrize("head_dim", [1, 3, 8, 12, 300, 576])
@pytest.mark.parametrize("heads", [1, 3])
def test_any_number_of_heads_of_any_size(heads: int, head_dim: int, device: str) -> None:
    key, value = (torch.randn(4, heads, head_dim, device=device) for _ in range(2))
    k_cache, v_cache = (torch.full((3, 2, heads, head_dim), 7.0, device=device) for _ in range(2))
    slots = torch.tensor([5, -1, 0, 2], device=device)

    store(key, value, k_cache, v_cache, slots)

    for new, cache in ((key, k_cache), (value, v_cache)):
        expected = torch.full_like(cache, 7.0)
        expected.flatten(0, 1)[slots[[0, 2, 3]]] = new[[0, 2, 3]]
        assert torch.equal(cache, expected)


@pytest.mark.parametrize(("axis", "stride"), [(2, 2**30), (2, 2**31 - 1)])
def test_a_head_that_spans_too_much_is_refused(axis: int, stride: int, device: str) -> None:
    """Chunks of a packed cache are told apart in 32 bits. Nothing is touched, so that the memory need not be there."""
    key = torch.zeros(1, 1, 16, device=device)
    v_cache = torch.zeros(1, 1, 16, 1, device=device)
    k_cache = torch.empty(1, 1, 4, 1, 4, device="meta").as_strided((1, 1, 4, 1, 4), (16, 16, stride, 4, 1))
    with pytest.raises(ValueError, match=rf"k_cache.stride\({axis}\)={stride}; a head may span 2147483647 elements"):
        store(
            key.to("meta"),
            key.to("meta"),
            k_cache,
            v_cache.to("meta"),
            torch.zeros(1, dtype=torch.int64, device="meta"),
        )


def test_minus_one_everywhere_writes_nothing(device: str) -> None:
    k_cache, v_cache = pool(torch.float32, False, device)
    before = k_cache.clone(), v_cache.clone()

    store(*tokens(torch.float32, device), k_cache, v_cache, torch.full((TOKENS,), -1, device=device))

    assert torch.equal(k_cache, before[0])
    assert torch.equal(v_cache, before[1])


def test_a_waived_check_still_writes_nothing_outside(device: str) -> None:
    """A slot past the pool, with the check waived, is skipped: the memory behind the pool is somebody else's."""
    k_pool, v_pool = (torch.zeros(BLOCKS + 1, BLOCK_SIZE, HEADS, DIM, device=device) for _ in range(2))
    slots = torch.arange(TOKENS, device=device) + BLOCKS * BLOCK_SIZE

    store(*tokens(torch.float32, device), k_pool[:BLOCKS], v_pool[:BLOCKS], slots, check_values=False)

    assert not k_pool.any()
    assert not v_pool.any()


BAD = {
    "slot_mapping[2]=35; expected -1 (skip) or a slot from 0 to 34": {"slot_mapping": torch.tensor([0, 1, 35, *[-1] * 17])},
    "slot_mapping[0]=-2": {"slot_mapping": torch.tensor([-2, *[-1] * 19])},
    "slot_mapping has 3 entries for 20 tokens": {"slot_mapping": torch.arange(3)},
    "slot_mapping.dtype=torch.float32": {"slot_mapping": torch.arange(20.0)},
    "value.shape=(20, 3, 16)": {"value": torch.zeros(20, 3, 16)},
    "k_cache.shape=(7, 5, 3, 16); expected (7, 5, 3, 24)": {"k_cache": torch.zeros(7, 5, 3, 16)},
    "v_cache.dtype=torch.float16": {"v_cache": torch.zeros(7, 5, 3, 24).half()},
    "v_cache.stride()=(0, 72, 24, 1); several elements share one place": {"v_cache": torch.zeros(1, 5, 3, 24)},
    "slot_mapping.layout=torch.sparse_coo": {"slot_mapping": torch.arange(20).to_sparse()},
    "key has 2 dimensions": {"key": torch.zeros(20, 72)},
}  # fmt: skip


def placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On the device; a single block stands for all, expanded there, since a move would give each its own place."""
    tensor = tensor.to(device)
    return tensor.expand(BLOCKS, -1, -1, -1) if tensor.dim() == 4 and len(tensor) == 1 else tensor


@pytest.mark.parametrize("message", BAD, ids=str)
def test_refuses_and_writes_nothing(message: str, device: str) -> None:
    key, value = tokens(torch.float32, device)
    k_cache, v_cache = pool(torch.float32, False, device)
    before = k_cache.clone()
    arguments = {
        "key": key,
        "value": value,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "slot_mapping": torch.arange(TOKENS, device=device),
    }

    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is compared below)
        store(**(arguments | {name: placed(tensor, device) for name, tensor in BAD[message].items()}))

    assert message in str(caught.value)
    assert torch.equal(k_cache, before)
