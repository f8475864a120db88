"""Batch preparation, and a model that needs a GPU."""

import torch
from nanovllm.layers.sampler import Sampler
from nanovllm.models.qwen3 import Model
from nanovllm.utils.context import get_context, set_context


class ModelRunner:
    def __init__(self, config):
        self.block_size = config.kvcache_block_size
        self.model = Model().cuda()
        self.sampler = Sampler()

    @torch.inference_mode()
    def run(self, seqs, is_prefill):
        prepare = self.prepare_prefill if is_prefill else self.prepare_decode
        return self.sampler(self.model(*prepare(seqs)), get_context())

    def _slot(self, seq, position):
        return seq.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _tables(self, seqs):
        width = max((len(seq.block_table) for seq in seqs), default=0)
        return _gpu([seq.block_table + [-1] * (width - len(seq.block_table)) for seq in seqs])

    def prepare_prefill(self, seqs):
        ids, positions, slots, sums_q, sums_k = [], [], [], [0], [0]
        for seq in seqs:
            start = seq.num_cached_tokens
            stop = start + seq.num_scheduled_tokens
            ids += seq[start:stop]
            positions += range(start, stop)
            slots += [self._slot(seq, p) for p in range(start, stop)]
            sums_q.append(sums_q[-1] + stop - start)
            sums_k.append(sums_k[-1] + stop)
        set_context(_gpu(sums_q), _gpu(sums_k), _gpu(slots), None, self._tables(seqs))
        return _gpu(ids), _gpu(positions)

    def prepare_decode(self, seqs):
        last = [len(seq) - 1 for seq in seqs]
        slots = [self._slot(seq, p) for seq, p in zip(seqs, last, strict=True)]
        set_context(None, None, _gpu(slots), _gpu([p + 1 for p in last]), self._tables(seqs))
        return _gpu([seq[p] for seq, p in zip(seqs, last, strict=True)]), _gpu(last)


def _gpu(values):
    return torch.tensor(values, dtype=torch.int32, pin_memory=True).cuda(non_blocking=True)
