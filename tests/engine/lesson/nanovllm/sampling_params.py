"""What a request may ask for."""


class SamplingParams:
    def __init__(self, temperature=1.0, max_tokens=64, ignore_eos=False):
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.ignore_eos = ignore_eos
