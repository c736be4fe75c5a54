"""Fixtures of the quant tests."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_file import GgufFile
from quant.tensor import QuantTensor
from quant.types import QuantType


@pytest.fixture
def open_error(gguf_builder: Any) -> Callable[..., str]:
    """Function from the bytes of a file to the message that opening it gives, without the path.

    Also checks what holds for every hostile file: one line that begins with the path, in 0.1 s of processor
    time and little memory.
    """

    def message(data: bytes | Path, name: str = "hostile.gguf") -> str:
        path = data if isinstance(data, Path) else gguf_builder.write_bytes(data, name)
        tracemalloc.start()
        started = time.process_time()
        try:
            with pytest.raises(QuantError) as caught:
                GgufFile.open(path)
            elapsed = time.process_time() - started
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert text.isprintable(), "not one line"
        assert elapsed < 0.1
        assert peak < 1 << 20
        return text.removeprefix(f"{path}: ")

    return message


@pytest.fixture
def random_tensor() -> Callable[..., QuantTensor]:
    """Function (type, shape, seed) -> a tensor of random packed bytes; all float16 patterns stay finite."""

    def build(qtype: QuantType, shape: tuple[int, ...], seed: int = 0) -> QuantTensor:
        size = int(np.prod(shape)) // qtype.block_size * qtype.block_bytes
        data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        # An infinite or undefined float of any format has a byte 0x7c..0x7f or 0xfc..0xff.
        data[(data & 0x7C) == 0x7C] ^= 0x40
        if qtype.name == "IQ1_M":  # the float16 is spread over four bytes, its upper bits are in the last
            data[qtype.block_bytes - 1 :: qtype.block_bytes] &= 0xBF
        return QuantTensor("random", qtype, shape, data)

    return build
