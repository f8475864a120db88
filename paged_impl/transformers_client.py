"""transformers models over a paged cache: a packed forward pass through the attention interface, and greedy decoding.

    client = PagedClient(model, num_blocks=64)
    client.admit("a", prompt)                       # a list of token ids
    while not done:
        token = client.step(["a"])["a"]             # computes what is left of each sequence, in one ragged batch
        client.append("a", token)

The sequences of a step lie one after the other in one row of `input_ids` (no padding), as in continuous batching; attention
tells them apart by the step's block tables. The model's own cache is off, so that its layers hand over the keys and values of
the new tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paged_impl.cache import PagedKVCache
from paged_impl.step import Name, Row, Step

ATTENTION = "paged_kv_cache"


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    paged_cache: PagedKVCache,
    paged_step: Step,
    **unused: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: query, key, value `[1, heads, T, d]` of the step's tokens; out `[1, T, H, d]`.

    Writes the keys and values into the cache. Raises ValueError for what a paged causal read cannot honour.
    """
    if attention_mask is not None:
        raise ValueError(
            "attention_mask is given: a paged step is causal over each sequence, and takes no mask of its own"
        )
    _check_plain(unused, paged_cache.window)
    layer = module.layer_idx
    paged_cache.write(layer, _tokens_first(key), _tokens_first(value), paged_step)
    out = paged_cache.attend(layer, _tokens_first(query), paged_step, scale=scaling)
    return out[None], None


def _check_plain(asked: dict[str, Any], window: int | None) -> None:
    """Raise ValueError where a layer asks for more than causal attention with the cache's window."""
    for name, without, meaning in (
        ("softcap", None, "soft capping"),
        ("s_aux", None, "attention sinks"),
        ("position_bias", None, "a bias"),
        ("dropout", 0.0, "dropout: call model.eval()"),
        ("is_causal", True, "attention to what comes later"),
    ):
        value = asked.get(name)
        if value is not None and (without is None or value != without):
            shown = name if isinstance(value, Tensor) else f"{name}={value}"
            raise ValueError(f"{shown}: a paged causal read has none ({meaning})")
    sliding = asked.get("sliding_window")
    if sliding is not None and sliding != window:
        raise ValueError(
            f"sliding_window={sliding}: the cache has window={window}, and one for all layers. Give "
            f"PagedClient window={sliding} if every layer of the model has that"
        )


def _tokens_first(tensor: Tensor) -> Tensor:
    """`[1, heads, T, d]` as `[T, heads, d]`: a view."""
    return tensor[0].transpose(0, 1)


def register() -> str:
    """Make the attention known to transformers; returns its name. Raises ValueError where transformers is missing."""
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise ValueError(f"{error}. Install it with: pip install 'pagefault[transformers]'") from error
    AttentionInterface.register(ATTENTION, attention)
    return ATTENTION


class PagedClient:
    """A causal language model whose KV lives in a `PagedKVCache`. Sequences go by names that the caller chooses.

    The model is switched to this attention (its own implementation is back after `close`), and must be a decoder whose layers
    call the attention interface: Llama, Qwen3 and their like. `options` go to the cache.
    """

    def __init__(self, model: Any, *, num_blocks: int, block_size: int = 16, **options: Any) -> None:
        config = model.config
        self.model = model
        self._own_attention = config._attn_implementation
        paged_attention = register()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weight = next(model.parameters())
        self.cache = PagedKVCache(
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=weight.dtype,
            device=weight.device,
            **options,
        )
        model.set_attn_implementation(paged_attention)  # last: a refusal above leaves the model as it was

    def close(self) -> None:
        """Give the model its own attention back."""
        self.model.set_attn_implementation(self._own_attention)

    def admit(self, name: Name, tokens: Sequence[int]) -> int:
        """A new sequence; how many of its leading tokens are cached. Raises OutOfBlocks, ValueError."""
        return self.cache.admit(name, tokens)

    def append(self, name: Name, token: int) -> None:
        """One more token, computed by the next step. Raises OutOfBlocks."""
        self.cache.append(name, [token])

    @torch.inference_mode()
    def step(self, rows: Sequence[Name | Row]) -> dict[Name, int]:
        """Compute rows in one forward pass; the greedy next token of each row that ends at its sequence's last token."""
        logits, step = self.logits(rows)
        tokens = logits.argmax(-1).tolist()
        manager = self.cache.manager
        return {
            row.name: token
            for row, token in zip(step.rows, tokens, strict=True)
            if row.stop == manager.num_tokens(row.name)
        }

    @torch.inference_mode()
    def logits(self, rows: Sequence[Name | Row]) -> tuple[Tensor, Step]:
        """`[R, vocabulary]` at the last token of each row, and the step that was computed."""
        step = self.cache.plan(rows)
        out = self.model(
            input_ids=step.input_ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=step.last_tokens,
            paged_cache=self.cache,
            paged_step=step,
        )
        self.cache.commit(step)
        logits: Tensor = out.logits[0]
        return logits, step


def generate(client: PagedClient, prompts: dict[Name, Sequence[int]], num_tokens: int) -> dict[Name, list[int]]:
    """Greedy continuation of every prompt by `num_tokens` tokens, all in one ragged batch; sequences end afterwards."""
    for name, prompt in prompts.items():
        client.admit(name, prompt)
    out: dict[Name, list[int]] = {name: [] for name in prompts}
    for index in range(num_tokens):
        for name, token in client.step(list(prompts)).items():
            out[name].append(token)
            if index < num_tokens - 1:
                client.append(name, token)
    for name in prompts:
        client.cache.free(name)
    return out
