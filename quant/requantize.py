"""From one GGUF type to another, in chunks, on a few threads (numpy lets go of the interpreter lock).

Not meant for activations or training; the accuracy of each quantizer is stated by the tests.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from .errors import QuantError
from .lanes import GROUP, ByteArray, FloatArray, decode_lanes
from .quantizers import ENCODABLE, encoder
from .reference import dequantize
from .tensor import QuantTensor
from .types import BF16, BY_NAME, F16, F32, QuantType

Progress = Callable[[int, int], None]  # (values done, values in all)

_FLOAT_TYPES = (F32, F16, BF16)
QUANTIZABLE: tuple[QuantType, ...] = (*(BY_NAME[name] for name in ENCODABLE), *reversed(_FLOAT_TYPES))

_CHUNK_VALUES = 1 << 18  # long loops keep threads from queueing for the interpreter lock


def quantize(
    values: npt.NDArray[np.floating], qtype: QuantType, *, name: str = "", threads: int = 1
) -> QuantTensor:
    """Pack an array as a tensor of type `qtype`, one of QUANTIZABLE, with the array's shape.

    Raises as `requantize` does.
    """
    flat = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return requantize(QuantTensor(name, F32, values.shape, flat), qtype, threads=threads)


def requantize(tensor: QuantTensor, qtype: QuantType, *, threads: int = 1) -> QuantTensor:
    """Return the tensor as type `qtype`, one of QUANTIZABLE; itself when it has that type already.

    Raises QuantError that names the tensor when the type cannot be written, when rows are not multiples of
    its block, or when values are not finite or too large for it.
    """
    return requantize_all([(tensor, qtype)], threads=threads)[0]


def requantize_all(
    wanted: Sequence[tuple[QuantTensor, QuantType]], *, threads: int = 1, progress: Progress | None = None
) -> list[QuantTensor]:
    """`requantize` for many tensors at once, which keeps all threads busy to the end."""
    jobs = [_Job.of(tensor, qtype) for tensor, qtype in wanted]
    tasks = [partial(job.run, start) for job in jobs for start in range(0, job.num_units, job.step)]
    total, done = sum(tensor.num_elements for tensor, _ in wanted), 0
    for count in _run_all(tasks, threads):
        done += count
        if progress is not None:
            progress(done, total)
    return [job.result() for job in jobs]


def _run_all(tasks: Sequence[Callable[[], int]], threads: int) -> Iterable[int]:
    """Run tasks, on this thread when one is enough; the first error ends them all."""
    if threads <= 1 or len(tasks) == 1:
        yield from (task() for task in tasks)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="requantize")
    try:
        yield from pool.map(lambda task: task(), tasks)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Job:
    """One tensor on its way. A unit is the smallest number of values that both types can cut off."""

    tensor: QuantTensor
    qtype: QuantType
    unit: int  # values
    out: ByteArray  # [num_units, bytes of a unit]

    @classmethod
    def of(cls, tensor: QuantTensor, qtype: QuantType) -> "_Job":
        if qtype not in QUANTIZABLE and qtype != tensor.qtype:
            known = ", ".join(known.name for known in QUANTIZABLE)
            raise QuantError(f"there is no quantizer for type {qtype.name}; there are {known}")
        if tensor.shape[-1] % qtype.block_size:
            message = f"rows of {tensor.shape[-1]} values are not multiples of {qtype.block_size}"
            raise QuantError(f"tensor {tensor.name!r} cannot be {qtype.name}: {message}")
        if qtype in _FLOAT_TYPES:
            unit = tensor.qtype.block_size
        else:
            unit = max(GROUP, qtype.block_size, tensor.qtype.block_size)
            unit = tensor.num_elements if tensor.num_elements % unit else unit
        num_units = 0 if tensor.qtype == qtype else tensor.num_elements // unit
        out = np.empty((num_units, unit // qtype.block_size * qtype.block_bytes), np.uint8)
        return cls(tensor, qtype, unit, out)

    @property
    def num_units(self) -> int:
        return len(self.out)

    @property
    def step(self) -> int:
        """Units to a chunk."""
        return max(1, _CHUNK_VALUES // self.unit)

    def run(self, start: int) -> int:
        """Convert one chunk and return the number of its values."""
        out = self.out[start : start + self.step]
        source = self.tensor.qtype
        first, count = start * self.unit // source.block_size, len(out) * self.unit // source.block_size
        blocks = self.tensor.data.reshape(-1, source.block_bytes)[first : first + count]
        with np.errstate(all="ignore"):
            try:
                out[:] = _convert(source, blocks, self.qtype, self.unit).reshape(out.shape)
            except QuantError as error:
                raise QuantError(f"tensor {self.tensor.name!r} {error}") from error
        return len(out) * self.unit

    def result(self) -> QuantTensor:
        if self.tensor.qtype == self.qtype:
            return self.tensor
        return QuantTensor(self.tensor.name, self.qtype, self.tensor.shape, self.out.reshape(-1))


def _convert(source: QuantType, blocks: ByteArray, target: QuantType, unit: int) -> ByteArray:
    encode = encoder(target.name)
    if encode is not None:
        return encode(decode_lanes(source, blocks, unit))
    shape = (len(blocks) * source.block_size,)
    return _floats(dequantize(QuantTensor("chunk", source, shape, blocks.reshape(-1))), target)


def _floats(values: FloatArray, target: QuantType) -> ByteArray:
    """Little-endian bytes of F32, F16 or BF16 values. Infinite ones stay so, no others become so."""
    if target == F32:
        return values.astype("<f4").view(np.uint8)
    if target == F16:
        half = values.astype("<f2")
        if (np.isinf(half) & np.isfinite(values)).any():
            raise QuantError(f"holds values too large for {F16.name}")
        return half.view(np.uint8)
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16  # to nearest, ties to even
    quiet = np.where(np.isnan(values), bits >> 16 | 0x40, rounded)
    return quiet.astype("<u2").view(np.uint8)
