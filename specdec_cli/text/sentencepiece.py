"""SentencePiece-type BPE (`tokenizer.ggml.model` = llama): neighbours merge into the best-scored token.

There is no table of merges: a pair merges when the joined text is a token, so a dictionary of the vocabulary
is all that is needed (a table of pairs would take 1.6 s and 379 MB for Gemma's 262k tokens). Nothing cuts the
text into words beforehand, but merging never crosses two neighbouring characters that no token has inside;
cutting there gives short pieces that can be remembered.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specdec_cli.errors import ModelError
from specdec_cli.text.bpe import WordCache, merge_pairs
from specdec_cli.text.vocabulary import Vocabulary

SPACE = "▁"  # how the vocabulary writes a space

_FILTER_BITS = 22
_HASH = np.uint32(0x9E3779B1)


class SentencePieceBpe:
    """Merging by score, with bytes for characters that no token has."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._scores = vocabulary.scores
        self._unk_id = vocabulary.unk_id
        self._byte_ids = [self._byte_id(byte) for byte in range(256)]
        if self._unk_id is None and None in self._byte_ids:
            byte = self._byte_ids.index(None)
            raise ModelError(f"the vocabulary has neither a token for byte 0x{byte:02X} nor an unknown token")
        self._split = PairFilter(self._ids).split
        self._cache = WordCache(self._encode_piece)

    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        return self._cache.encode(self._split(text.replace(" ", SPACE)))

    def _byte_id(self, byte: int) -> int | None:
        token_id = self._ids.get(f"<0x{byte:02X}>")
        return self._ids.get(chr(byte)) if token_id is None and byte < 0x80 else token_id

    def _encode_piece(self, piece: str) -> list[int]:
        whole = self._ids.get(piece) if len(piece) == 1 else None
        if whole is not None:
            return [whole]
        ids: list[int] = []
        for part in merge_pairs(piece, self._rank):
            token_id = self._ids.get(part)
            if token_id is not None:
                ids.append(token_id)
                continue
            byte_ids = [self._byte_ids[byte] for byte in part.encode()]
            ids.extend(self._unk_id if i is None else i for i in byte_ids)  # type: ignore[misc]
        return ids

    def _rank(self, left: str, right: str) -> float | None:
        token_id = self._ids.get(left + right)
        if token_id is None:
            return None
        return -self._scores[token_id] if self._scores else 0.0


class PairFilter:
    """Which characters may stand side by side inside a token: a bitmap over hashes of pairs.

    A collision only makes a piece longer than needed. 4 MB whatever the size of the vocabulary.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        texts = [text for text in ids if len(text) > 1]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        pairs = _pair_hashes("".join(texts))
        inside = np.ones(len(pairs), np.bool_)
        inside[np.cumsum(lengths)[:-1] - 1] = False
        self._seen = np.zeros(1 << _FILTER_BITS, np.bool_)
        self._seen[pairs[inside]] = True

    def split(self, text: str) -> list[str]:
        """Cut a text where no token can lie across; the pieces joined are the text."""
        if len(text) < 2:
            return [text] if text else []
        cuts = np.flatnonzero(~self._seen[_pair_hashes(text)]) + 1
        bounds = [0, *cuts.tolist(), len(text)]
        return [text[a:b] for a, b in pairwise(bounds)]


def _pair_hashes(text: str) -> npt.NDArray[np.uint32]:
    """Hash [len(text) - 1] of each two neighbouring characters."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return ((points[:-1] * _HASH) ^ (points[1:] * np.uint32(0x85EBCA6B))) >> np.uint32(32 - _FILTER_BITS)


def spm_bytes(text: str) -> bytes:
    """Bytes that a normal vocabulary entry writes."""
    return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")
