"""Fixtures shared by all areas: paths of real model files, and a factory of tiny or hostile GGUF files."""

import importlib.util
import os
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODEL_FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures of tests/plugins; they cannot be imported by name in importlib mode."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background: processes that tests interrupt would inherit a Ctrl-C that does nothing.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for path in sorted((Path(__file__).parent / "plugins").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"specdec_tests_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        plugin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plugin)
        config.pluginmanager.register(plugin, spec.name)


GGUF_TYPE_IDS = {
    "UINT8": 0, "INT8": 1, "UINT16": 2, "INT16": 3, "UINT32": 4, "INT32": 5, "FLOAT32": 6, "BOOL": 7,
    "STRING": 8, "ARRAY": 9, "UINT64": 10, "INT64": 11, "FLOAT64": 12,
}  # fmt: skip
STRUCT_CODES = {
    "UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "UINT32": "I", "INT32": "i", "FLOAT32": "f",
    "BOOL": "?", "UINT64": "Q", "INT64": "q", "FLOAT64": "d",
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit GGUF type name; for arrays, `type` is that of the elements."""

    value: Any
    type: str


@dataclass(frozen=True)
class Packed:
    """A tensor given by its packed bytes; `shape` is in numpy order (rows first)."""

    data: bytes
    shape: tuple[int, ...]
    type: str


def _guess_type(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "BOOL"
    if isinstance(value, int | np.integer):
        return "UINT32" if value >= 0 else "INT32"
    if isinstance(value, float | np.floating):
        return "FLOAT32"
    if isinstance(value, str | bytes):
        return "STRING"
    raise TypeError(f"no GGUF type for {value!r}")


def _guess_array_type(items: Sequence[Any]) -> str:
    """Type of array elements as real files have it: token types are INT32, scores FLOAT32."""
    if not items:
        return "STRING"
    guessed = _guess_type(items[0])
    return "INT32" if guessed == "UINT32" else guessed


class RawGguf:
    """Bytes of a GGUF file, piece by piece, with nothing checked: for hostile files.

    >>> gguf_builder.raw.header(kv_count=1) + gguf_builder.raw.kv(b"key", 9, struct.pack("<IQ", 4, 2**63))
    """

    @staticmethod
    def string(text: str | bytes) -> bytes:
        """A length-prefixed string."""
        data = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(data)) + data

    @staticmethod
    def header(
        *,
        kv_count: int = 0,
        tensor_count: int = 0,
        version: int = 3,
        magic: bytes = b"GGUF",
        endian: str = "<",
    ) -> bytes:
        """Magic, version and counts."""
        return magic + struct.pack(f"{endian}IQQ", version, tensor_count, kv_count)

    @classmethod
    def kv(cls, key: str | bytes, type_id: int, payload: bytes) -> bytes:
        """A metadata entry whose value is given as bytes."""
        return cls.string(key) + struct.pack("<I", type_id) + payload

    @classmethod
    def entry(cls, key: str | bytes, value: Any) -> bytes:
        """A well-formed metadata entry of a Python value (or Typed value)."""
        explicit = value.type if isinstance(value, Typed) else None
        value = value.value if isinstance(value, Typed) else value
        if isinstance(value, list | tuple | np.ndarray):
            element_type = explicit or _guess_array_type(value)
            items = b"".join(cls.scalar(item, element_type) for item in value)
            header = struct.pack("<IQ", GGUF_TYPE_IDS[element_type], len(value))
            return cls.kv(key, GGUF_TYPE_IDS["ARRAY"], header + items)
        type_name = explicit or _guess_type(value)
        return cls.kv(key, GGUF_TYPE_IDS[type_name], cls.scalar(value, type_name))

    @classmethod
    def scalar(cls, value: Any, type_name: str) -> bytes:
        """The bytes of one value of a scalar or string type."""
        if type_name == "STRING":
            return cls.string(value)
        return struct.pack(f"<{STRUCT_CODES[type_name]}", value)

    @classmethod
    def tensor_info(cls, name: str | bytes, dims: Sequence[int], type_id: int, offset: int) -> bytes:
        """A tensor's directory entry; `dims` in file order (the length of a row first)."""
        packed_dims = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        return cls.string(name) + packed_dims + struct.pack("<IQ", type_id, offset)

    @staticmethod
    def pad(data: bytes, alignment: int = 32) -> bytes:
        """`data` followed by zeros up to a multiple of `alignment`."""
        return data + b"\0" * (-len(data) % alignment)


class GgufBuilder:
    """Writes GGUF files into a directory of the test."""

    raw = RawGguf
    Typed = Typed
    Packed = Packed

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_bytes(self, data: bytes, name: str = "hostile.gguf") -> Path:
        """Write any bytes and return the path."""
        path = self.directory / name
        path.write_bytes(data)
        return path

    def write(
        self,
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        *,
        name: str = "tiny.gguf",
        arch: str = "llama",
        alignment: int | None = None,
        split_max_tensors: int = 0,
    ) -> Path:
        """Write a valid file with the gguf package's writer; return its path (when split, the first shard's).

        Metadata values: str, bool, int (UINT32, or INT32 below zero), float (FLOAT32), lists of those (of
        int: INT32), or `Typed(value, "UINT64")`. Tensors: an array (float32, float16, float64, int8 to
        int64), a pair `(float array, "Q8_0")` that is quantized, or `Packed(bytes, shape, "Q4_K")`.
        Empty lists and other things that the package refuses: build them with `raw`.
        """
        from gguf import GGUFValueType, GGUFWriter

        path = self.directory / name
        writer = GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
        if alignment is not None:
            writer.add_custom_alignment(alignment)
        for key, given in (metadata or {}).items():
            explicit = given.type if isinstance(given, Typed) else None
            value = given.value if isinstance(given, Typed) else given
            if isinstance(value, list | tuple | np.ndarray):
                items = list(value)
                element_type = GGUFValueType[explicit or _guess_array_type(items)]
                writer.add_key_value(key, items, GGUFValueType.ARRAY, element_type)
            else:
                writer.add_key_value(key, value, GGUFValueType[explicit or _guess_type(value)])
        for tensor_name, given in (tensors or {}).items():
            self._add_tensor(writer, tensor_name, given)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if split_max_tensors and not path.exists():
            return next(self.directory.glob(f"{path.stem}-00001-of-*.gguf"))
        return path

    @staticmethod
    def _add_tensor(writer: Any, name: str, given: Any) -> None:
        from gguf import GGMLQuantizationType
        from gguf.quants import quant_shape_to_byte_shape, quantize

        if isinstance(given, Packed):
            qtype = GGMLQuantizationType[given.type]
            byte_shape = quant_shape_to_byte_shape(given.shape, qtype)
            writer.add_tensor(name, np.frombuffer(given.data, np.uint8).reshape(byte_shape), raw_dtype=qtype)
        elif isinstance(given, tuple):
            values, type_name = given
            qtype = GGMLQuantizationType[type_name]
            writer.add_tensor(name, quantize(np.asarray(values, np.float32), qtype), raw_dtype=qtype)
        else:
            writer.add_tensor(name, np.ascontiguousarray(given))


@pytest.fixture
def gguf_builder(tmp_path: Path) -> GgufBuilder:
    """Factory of GGUF files in the test's directory; see GgufBuilder and RawGguf."""
    return GgufBuilder(tmp_path)


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """Path of a real model file by alias: $SPECDEC_MODELS_DIR, `models` beside the checkout, or the cache.

    Skips the test where the file is absent, unless SPECDEC_REQUIRE_MODELS=1 makes that a failure.
    """

    # Found before a test points the cache elsewhere.
    cached_models = {alias: _cached_model(alias) for alias in MODEL_FILES}

    def find(alias: str) -> Path:
        beside = Path(__file__).resolve().parents[2] / "models"
        directories = [Path(d) for d in [os.environ.get("SPECDEC_MODELS_DIR")] if d] or [beside]
        for directory in directories:
            candidate = directory / MODEL_FILES[alias]
            if candidate.is_file():
                return candidate
        cached = cached_models[alias]
        if cached is not None:
            return cached
        message = (
            f"model file of {alias} not found: set SPECDEC_MODELS_DIR or run `specdec models pull {alias}`"
        )
        if os.environ.get("SPECDEC_REQUIRE_MODELS") == "1":
            pytest.fail(message)
        pytest.skip(message)

    return find


def _cached_model(alias: str) -> Path | None:
    """Where the registry keeps a pulled model, if it has it."""
    from specdec_cli import registry
    from specdec_cli.errors import SpecdecError

    if not hasattr(registry, "resolve_model"):
        return None
    try:
        return Path(registry.resolve_model(alias, pull=False).path)
    except SpecdecError:
        return None
