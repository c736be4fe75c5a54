"""The sampler (API; see below)."""

from collections.abc import Sequence

from .params import SamplingParams


class Sampler:
    """Chooses tokens from logits."""

    def __init__(self, params: SamplingParams, context_ids: Sequence[int], *, n_vocab: int) -> None:
        self.params = params
        self._context = list(context_ids)
        self._n_vocab = n_vocab
