"""Whole prompts first, then one token for everybody; the last that came gives way."""

from collections import deque

from nanovllm.engine.block_manager import BlockManager


class Scheduler:
    def __init__(self, config):
        self.max_num_seqs = config.max_num_seqs
        self.budget = config.max_num_batched_tokens
        self.block_manager = BlockManager(config.num_kvcache_blocks, config.kvcache_block_size)
        self.waiting = deque()
        self.running = deque()

    def add(self, seq):
        self.waiting.append(seq)

    def schedule(self):
        chosen, left = [], self.budget
        while self.waiting and left and len(chosen) < self.max_num_seqs:
            seq = self.waiting[0]
            if not seq.block_table:
                if self.block_manager.can_allocate(seq) < 0:
                    break
                self.block_manager.allocate(seq, 0)
            seq.num_scheduled_tokens = min(len(seq) - seq.num_cached_tokens, left)
            left -= seq.num_scheduled_tokens
            chosen.append(seq)
            if seq.num_cached_tokens + seq.num_scheduled_tokens < len(seq):
                break
            self.running.append(self.waiting.popleft())
        if chosen:
            return chosen, True
        for seq in list(self.running)[: self.max_num_seqs]:
            if seq not in self.running:
                continue
            while not self.block_manager.can_append(seq):
                last = self.running.pop()
                self.block_manager.deallocate(last)
                self.waiting.appendleft(last)
                if last is seq:
                    break
            else:
                self.block_manager.may_append(seq)
                seq.num_scheduled_tokens = 1
                chosen.append(seq)
        return chosen, False

    def postprocess(self, seqs, token_ids, is_prefill):
        for seq, token in zip(seqs, token_ids, strict=True):
            seq.num_cached_tokens += seq.num_scheduled_tokens
            if seq.num_cached_tokens < len(seq):
                continue
            seq.append_token(token)
            if seq.num_completion_tokens == seq.max_tokens:
                seq.is_finished = True
                self.block_manager.deallocate(seq)
                self.running.remove(seq)
