"""A real client: tiny random models of transformers generate through `PagedKVCache` what they generate with their own cache.

Built from a config, nothing is downloaded. float32 on a CPU: the two ways differ by 1e-6 or so in a logit, and the best token
leads by far more in every step (checked), so that equality is no accident.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from paged_impl.step import Row

pytest.importorskip("transformers", reason="needs transformers: pip install 'pagefault[transformers]'")

from paged_impl.transformers_client import PagedClient, generate

LEAST_LEAD = 1e-3
"""By which the best token leads in every step of the reference."""
A, B, C = [1, 2, 3, 4, 5, 6, 7], [5, 6], list(range(10, 30))
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": None,
}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))


@pytest.fixture(scope="module", params=[llama, qwen3], ids=lambda make: make.__name__)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return request.param().eval()


@pytest.fixture(params=["torch-gather", "triton"])
def client(model: Any, request: pytest.FixtureRequest) -> Iterator[PagedClient]:
    """Plain torch, and our kernels: interpreted, or compiled where there is a GPU."""
    made = PagedClient(
        on_triton_device(model) if request.param == "triton" else model,
        num_blocks=24,
        block_size=4,
        backend=request.param,
    )
    yield made
    made.close()


def on_triton_device(model: Any) -> Any:
    """The model where our kernels run: as it is where they are interpreted, else a copy on the GPU."""
    pytest.importorskip("triton", reason="needs Triton: pip install 'pagefault[torch]'")
    return model if os.environ.get("TRITON_INTERPRET") == "1" else copy.deepcopy(model).to("cuda")


def own(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the model generates with its own dense cache."""
    out = model.generate(
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
        max_new_tokens=num_tokens,
        do_sample=False,
        use_cache=True,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    for scores in out.scores:
        best, second = scores[0].topk(2).values.tolist()
        assert best - second > LEAST_LEAD, "the reference is undecided: choose another prompt"
    tokens: list[int] = out.sequences[0, len(prompt) :].tolist()
    return tokens


def decode(client: PagedClient, names: Sequence[str], out: dict[str, list[int]], num_tokens: int) -> None:
    """Steps of all `names` together until each has `num_tokens`; tokens go to `out`, the last one is not computed."""
    while names := [name for name in names if len(out[name]) < num_tokens]:
        for name, token in client.step(names).items():
            out[name].append(token)
            if len(out[name]) < num_tokens:
                client.append(name, token)


def test_a_ragged_batch(client: PagedClient) -> None:
    expected = [own_tokens(client, prompt, 8) for prompt in (A, B, C)]

    assert list(generate(client, {"a": A, "b": B, "c": C}, 8).values()) == expected


def own_tokens(client: PagedClient, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """`own`, with the attention that the model came with."""
    paged = client.model.config._attn_implementation
    client.close()
    try:
        return own(client.model, prompt, num_tokens)
    finally:
        client.model.set_attn_implementation(paged)


def test_chunked_prefill_beside_a_decoding_sequence(client: PagedClient) -> None:
    expected = {"a": own_tokens(client, A, 9), "c": own_tokens(client, C, 4)}
    out: dict[str, list[int]] = {"a": [], "c": []}
    client.admit("a", A)
    client.admit("c", C)

    for start in range(0, len(C), 5):  # chunks end within blocks
        tokens = client.step(["a", Row("c", start, start + 5)])
        assert ("c" in tokens) == (start + 5 == len(C)), "only a row that ends at the last token samples one"
        for name, token in tokens.items():
            out[name].append(token)
            client.append(name, token)
    decode(client, ["c"], out, 4)
    decode(client, ["a"], out, 9)

    assert out == expected


def test_a_shared_prefix_is_not_computed_again(client: PagedClient) -> None:
    prompt = [*C[:12], 40, 41]
    expected = own_tokens(client, prompt, 6)
    generate(client, {"first": C}, 2)

    assert client.admit("second", prompt) == 12
    out: dict[str, list[int]] = {"second": []}
    decode(client, ["second"], out, 6)

    assert out["second"] == expected


def test_a_fork_whose_sides_diverge(client: PagedClient) -> None:
    expected = {"parent": own_tokens(client, [*A, 50], 6), "child": own_tokens(client, [*A, 60], 6)}
    client.admit("parent", A)
    client.step(["parent"])
    client.cache.fork("parent", "child")
    client.append("parent", 50)  # the tail block is shared until here
    client.append("child", 60)
    out: dict[str, list[int]] = {"parent": [], "child": []}

    decode(client, ["child", "parent"], out, 6)

    assert out == expected
    assert client.cache.manager.table("parent")[0] == client.cache.manager.table("child")[0]
    assert client.cache.manager.table("parent")[1] != client.cache.manager.table("child")[1]


def test_a_preempted_sequence_goes_on_where_it_was(client: PagedClient) -> None:
    expected = {"a": own_tokens(client, A, 8), "c": own_tokens(client, C, 8)}
    out: dict[str, list[int]] = {"a": [], "c": []}
    for name, prompt in (("a", A), ("c", C)):
        client.admit(name, prompt)
    decode(client, ["a", "c"], out, 3)
    client.append("a", out["a"][-1])

    tokens = client.cache.preempt("a")
    client.cache.manager.clear_cache()  # nothing of it may be found again: it is recomputed
    client.append("c", out["c"][-1])
    decode(client, ["c"], out, 8)
    assert client.admit("a", tokens) == 0
    decode(client, ["a"], out, 8)

    assert tokens == [*A, *expected["a"][:3]]
    assert out == expected


def test_a_swapped_sequence_goes_on_where_it_was(model: Any) -> None:
    client = PagedClient(model, num_blocks=24, block_size=4, num_host_blocks=8)
    expected = {"a": own_tokens(client, A, 6), "c": own_tokens(client, C, 6)}
    out: dict[str, list[int]] = {"a": [], "c": []}
    client.admit("a", A)
    decode(client, ["a"], out, 3)
    client.cache.swap_out("a")
    client.admit("c", C)
    decode(client, ["c"], out, 6)
    client.cache.free("c")
    client.cache.swap_in("a")
    client.append("a", out["a"][-1])
    decode(client, ["a"], out, 6)
    client.close()

    assert out == expected


def test_through_the_triton_kernels(model: Any) -> None:
    """Interpreted where there is no GPU: a short run, ragged, over blocks of an odd size."""
    client = PagedClient(on_triton_device(model), num_blocks=16, block_size=3, backend="triton")
    expected = [own_tokens(client, prompt, 3) for prompt in (A, B)]

    out = generate(client, {"a": A, "b": B}, 3)
    client.close()

    assert list(out.values()) == expected


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_teacher_forced_logits_in_bfloat16(model: Any, device: str) -> None:
    """Whatever a step would sample, the true tokens follow; the paged run may err twice as much as the dense one."""
    exact = model(torch.tensor([C])).logits[0]
    half = copy.deepcopy(model).to(device, torch.bfloat16)
    dense = half(torch.tensor([C], device=device)).logits[0].float().cpu()
    client = PagedClient(half, num_blocks=8, block_size=4)
    client.admit("c", C)

    rows = [Row("c", 0, 7), *(Row("c", start, start + 1) for start in range(7, len(C)))]
    paged = torch.cat([client.logits([row])[0] for row in rows]).float().cpu()
    client.close()

    last = [row.stop - 1 for row in rows]
    errors, baseline = (paged - exact[last]).abs().max(), (dense - exact)[last].abs().max()
    assert 0 < baseline < 0.05 * exact.abs().max(), "a baseline this large would accept anything"
    assert errors <= 2 * baseline + 4 * torch.finfo(torch.bfloat16).eps * exact.abs().max() / len(C)


def test_a_client_that_is_refused_leaves_the_model_as_it_was(model: Any) -> None:
    before = model.config._attn_implementation

    with pytest.raises(ValueError, match="backend"):
        PagedClient(model, num_blocks=4, backend="no such backend")

    assert model.config._attn_implementation == before


def test_the_model_gets_its_own_attention_back(model: Any) -> None:
    before = model.config._attn_implementation
    client = PagedClient(model, num_blocks=4)
    during = model.config._attn_implementation
    client.close()

    assert (during != before, model.config._attn_implementation) == (True, before)
