"""One request."""

from itertools import count


class Sequence:
    block_size = 256
    counter = count()

    def __init__(self, token_ids, params=None):
        self.seq_id = next(Sequence.counter)
        self.token_ids = list(token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.block_table = []
        self.max_tokens = params.max_tokens if params else 1
        self.is_finished = False

    def __len__(self):
        return len(self.token_ids)

    def __getitem__(self, key):
        return self.token_ids[key]

    @property
    def num_completion_tokens(self):
        return len(self.token_ids) - self.num_prompt_tokens

    def append_token(self, token):
        self.token_ids.append(token)
