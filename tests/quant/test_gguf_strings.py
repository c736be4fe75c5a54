"""String arrays: the native loops and those in Python say the same."""

import struct

import pytest

from quant import gguf_strings
from quant.gguf_strings import StringBoundsError, StringTextError, decode_strings, strings_end


def packed(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


@pytest.fixture(params=["native", "python"], autouse=True)
def _loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(gguf_strings, "_native", None)
    else:
        assert gguf_strings._native is not None


def test_end_and_texts() -> None:
    data = packed(b"", "é\U0001f600".encode(), b"a\x00b")
    assert strings_end(b"xx" + data + b"yy", 2, 3) == 2 + len(data)
    assert decode_strings(data, 3) == ["", "é\U0001f600", "a\x00b"]
    assert decode_strings(b"", 0) == []
    assert strings_end(data, 0, 0) == 0


@pytest.mark.parametrize(
    ("data", "index", "needed"),
    [
        (packed(b"ab")[:-1], 0, 10),
        (packed(b"ab") + b"\1\0\0", 1, 18),
        (packed(b"a") + struct.pack("<Q", 2**63), 1, 2**63 + 17),
        (struct.pack("<Q", 2**64 - 1), 0, 2**64 + 7),
    ],
)
def test_entry_that_leaves_the_data(data: bytes, index: int, needed: int) -> None:
    with pytest.raises(StringBoundsError) as caught:
        strings_end(data, 0, index + 1)
    assert (caught.value.index, caught.value.needed) == (index, needed)


def test_entry_that_is_no_text() -> None:
    with pytest.raises(StringTextError, match="entry 1 is not UTF-8 text"):
        decode_strings(packed(b"ok", b"\xff", b"ok"), 3)
    with pytest.raises(StringTextError, match="entry 0"):
        decode_strings(packed(b"\xed\xa0\x80"), 1)  # a surrogate
