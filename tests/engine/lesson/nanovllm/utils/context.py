"""What the attention layers read."""

from types import SimpleNamespace

_contexts = []


def get_context():
    return _contexts[-1]


def set_context(cu_seqlens_q, cu_seqlens_k, slot_mapping, context_lens, block_tables):
    _contexts[:] = [
        SimpleNamespace(
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=None,
            max_seqlen_k=None,
            slot_mapping=slot_mapping,
            context_lens=context_lens,
            block_tables=block_tables,
        )
    ]
