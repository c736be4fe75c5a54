"""How fast this machine reads memory: the bound of plain decoding, which reads all weights for each token."""

from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt

_BYTES = 256 << 20  # far more than any cache holds


def read_bandwidth(threads: int, *, repetitions: int = 9, num_bytes: int = _BYTES) -> float:
    """Median GB/s (10^9 bytes) of reading a large array once, split evenly over `threads`."""
    words = np.ones(num_bytes // 8, np.uint64)  # written: pages that nobody wrote to are all the same one
    parts = np.array_split(words, threads)
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for repetition in range(repetitions + 1):
            started = perf_counter()
            list(pool.map(_read, parts))
            elapsed = perf_counter() - started
            if repetition:  # the first one starts the threads
                rates.append(words.nbytes / elapsed / 1e9)
    return median(rates)


def _read(part: npt.NDArray[np.uint64]) -> int:
    """Touch every word; numpy does this at the speed of the memory and without the interpreter's lock."""
    return int(np.bitwise_or.reduce(part))
