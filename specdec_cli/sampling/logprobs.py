"""Log-probabilities of the target itself: log-softmax of the raw logits of one row."""

import numpy as np
import numpy.typing as npt

from .candidates import top_indices


def log_probabilities(
    logits: npt.NDArray[np.float32], token_id: int, count: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Natural log-probability of `token_id`, and the `count` most likely (id, log-probability), best first.

    `logits` [n_vocab]. A function of that row alone, hence the same with and without speculation.
    """
    wide = np.ascontiguousarray(logits, np.float64)
    best = wide.max()
    total = best + np.log(np.exp(wide - best).sum())
    top = top_indices(wide, count) if count else ()
    return float(wide[token_id] - total), tuple((int(i), float(wide[i] - total)) for i in top)
