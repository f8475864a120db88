"""An adapter of attention kernels over a paged KV cache, to be filled in. It lets pagefault drive yours.

    pagefault check-target THIS_FILE.py:Target      is the adapter itself sound?
    pagefault run -t THIS_FILE.py:Target            find faults behind it (--device cuda on a GPU)
    pagefault test -t THIS_FILE.py:Target           the whole contract, under pytest
    pagefault bench -t THIS_FILE.py:Target          checked against float64, then timed beside others

pagefault makes pools, block tables and inputs, poisons every slot that a call must not look at, and judges what comes out.
Every `raise NotImplementedError` below wants a few lines of yours. Offer one of `store`, `decode` and `prefill`, or all; delete
what you do not have. What your kernels do not take, declare: only legal cases are drawn.
In the package `properties.attention`: `target.py` describes Pool, Batch and Output, `capabilities.py` every declaration,
`targets/plain.py` is a whole adapter in plain torch.

Letters: S sequences, T tokens of the call, B blocks, P block size, H query heads, G KV heads, D head size. Query head h reads
KV head h // (H // G).
"""

from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool


class Target:
    """The kernels under test. Made without arguments."""

    level = "attention"
    name = "my-kernels"  # what reports and `pagefault bench` call it
    capabilities = AttentionCapabilities(
        layouts=("flash",),  # K and V [B, P, G, D]; "hnd" is [B, G, P, D]; "vllm" packs the keys; others: copy it
        dtypes=("float32", "float16", "bfloat16"),
        devices=("cpu", "cuda"),  # ("cuda",) if it runs on a GPU only
        block_sizes=(1, 2, 3, 4, 5, 7, 16),  # tokens per block that it accepts; small ones find most
        head_sizes=(16, 24, 32, 64, 80, 128),  # D; with those of your models
        kv_heads=(1, 2, 3),  # G
        ratios=(1, 2, 3, 4, 5, 7, 8),  # query heads per KV head, H / G
        window=False,  # True if it honours batch.window
        lse_base=None,  # "e" or "2" if it returns the log-sum-exp beside the output
        max_context=300,  # longest context, and below it queries and sequences of a call: some must not fit one of your tiles
        max_queries=40,  # and partitions, or what goes wrong behind the first is never seen; where calls are slow (Triton
        max_rows=6,  # interpreted), 40, 12 and 3 do
        real_shapes=False,  # True: `pagefault test` also decodes in the shapes of LLaMA, Qwen, Phi, Gemma and others
        empty_rows="zeros",  # what a context of length 0 gives; or "undefined", "refused"
        # num_splits=True,   # it honours batch.num_splits (partitions of the context)
        # any_scale=False,   # it always scales by D ** -0.5
        # withstands=(),     # its caller must zero the pool: else slots that nobody owns hold NaN, infinities, huge numbers
        # padding=("zero",), # what the table holds behind a sequence's last block; else -1, huge and foreign ids too
        # refusals=(ValueError, NotImplementedError),  # what it declines with
        # promises=frozenset({"READ-3P", "READ-5P"}),  # bit-exact wherever the blocks lie, whatever the batch is
    )

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        """Write keys and values [T, G, D] to the slots [T] (int64; -1 = do not write); slot = block * P + offset."""
        raise NotImplementedError("store: write pool.key_cache and pool.value_cache")

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence, batch.q [S, H, D], over its context; the pool holds all of it already.

        `batch` converts itself: padded_block_tables() int32 [S, W] (ids behind a sequence's last block may be invalid),
        context_lens_tensor() int32 [S], cu_seqlens_q() int32 [S + 1], pages_csr(); pool.flash_views() gives K and V as
        [B, P, G, D]. Scores are scaled by batch.scale; batch.window tokens are visible, the query's own included, or all
        where it is None; where batch.want_lse is set the log-sum-exp is wanted too, float32 [T, H], in the base declared.
        """
        raise NotImplementedError("decode: return Output(out), out of the shape and dtype of batch.q")

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        """Causal attention of batch.q [T, H, D]: each sequence's queries are the last query_lens[s] tokens of its context."""
        raise NotImplementedError("prefill: return Output(out), out of the shape and dtype of batch.q")

    # ---- optional

    # def open(self): ...                         a fresh start before each case, if you keep plans or caches between calls
    # def copy_blocks(self, pools, pairs): ...    copy blocks (source, destination), K and V of every layer, in order
    # def prepare_decode(self, pool, batch): ...  for bench: convert first, return the call that is timed (prepare_prefill, ...)
