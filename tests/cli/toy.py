"""`specdec` with a toy in place of real models: run as `python toy.py ARGUMENTS`, in a process of its own.

Tokens 0..255 are bytes, 256 ends a generation, 257 stands before each answer. The model wants to say the
bytes of TOY_REPLY (JSON list of hexadecimal strings: one for each answer, the last one for all further ones),
and a pass takes TOY_DELAY seconds. With TOY_DRAFT set, a drafter proposes right tokens but for every fifth.
"""

import json
import os
import sys
import time
from collections.abc import Sequence

import numpy as np

from specdec_cli.cli import opening
from specdec_cli.cli.main import main
from specdec_cli.cli.options import ModelOptions, SpecOptions
from specdec_cli.cli.session import Message, Session
from specdec_cli.cli.settings import Settings
from specdec_cli.decoding.drafters.base import Draft, DraftRequest
from specdec_cli.engine import Engine
from specdec_cli.protocols import FloatArray, Rows

EOS, ANSWER, N_VOCAB = 256, 257, 258
REPLIES = [bytes.fromhex(text) for text in json.loads(os.environ.get("TOY_REPLY", '["68656c6c6f"]'))]
DELAY = float(os.environ.get("TOY_DELAY", "0"))
N_CTX = int(os.environ.get("TOY_CTX", "4096"))


def wanted(context: Sequence[int]) -> int:
    """The token that the model wants after a context."""
    answers = [i for i, token in enumerate(context) if token == ANSWER]
    if not answers:
        return EOS
    reply = REPLIES[min(len(answers), len(REPLIES)) - 1]
    said = len(context) - answers[-1] - 1
    return reply[said] if said < len(reply) else EOS


class ToyModel:
    """A LanguageModel whose logits are 0 but for the wanted token."""

    n_vocab, n_ctx = N_VOCAB, N_CTX

    def __init__(self) -> None:
        self._committed: dict[int, list[int]] = {}
        self._pending: tuple[Rows, list[list[int]]] | None = None

    def create_sequence(self) -> int:
        number = max(self._committed, default=-1) + 1
        self._committed[number] = []
        return number

    def fork_sequence(self, sequence: int, length: int) -> int:
        number = self.create_sequence()
        self._committed[number] = self._committed[sequence][:length]
        return number

    def free_sequence(self, sequence: int) -> None:
        del self._committed[sequence]

    def length(self, sequence: int) -> int:
        return len(self._committed[sequence])

    def truncate(self, sequence: int, length: int) -> None:
        del self._committed[sequence][length:]

    def forward(self, rows: Rows) -> FloatArray:
        time.sleep(DELAY)
        paths: list[list[int]] = []
        for token, sequence, parent in zip(rows.token_ids, rows.sequences, rows.parents, strict=True):
            before = self._committed[int(sequence)] if parent < 0 else paths[parent]
            paths.append([*before, int(token)])
        self._pending = rows, paths
        logits = np.zeros((len(rows.outputs), N_VOCAB), np.float32)
        for row, output in enumerate(rows.outputs):
            logits[row, wanted(paths[output])] = 50.0
        return logits

    def commit(self, sequence: int, rows: Sequence[int]) -> None:
        assert self._pending is not None
        if rows:
            self._committed[sequence] = list(self._pending[1][rows[-1]])


class ToyDrafter:
    """Proposes what the model wants, with every fifth token wrong."""

    name, needs_prefill = "toy", False

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = []
        for request in requests:
            context, ids = list(request.context), []
            for _ in range(request.max_tokens):
                token = wanted(context)
                ids.append(token if len(context) % 5 else (token + 1) % 256)
                context.append(ids[-1])
            drafts.append(Draft(ids, [1.0] * len(ids)))
        return drafts

    def release(self, sequence: int) -> None:
        pass


class ToyEncoder:
    """Bytes as tokens; each message on a line of its own, which ends before an answer with its marker."""

    eog_ids = frozenset({EOS})

    def encode_text(self, text: str, *, allow_special: bool) -> list[int]:
        return [*text.encode(), ANSWER]

    def encode_messages(self, messages: Sequence[Message], *, allow_special: bool) -> list[int]:
        ids: list[int] = []
        for message in messages:
            if message["role"] == "assistant":
                ids += [*message["content"].encode(), EOS]
            else:
                ids += [*f"{message['role']}: {message['content']}\n".encode()]
                if message["role"] == "user":
                    ids.append(ANSWER)
        return ids

    def prompt_text(self, ids: Sequence[int]) -> str:
        special = {EOS: "<eos>", ANSWER: "<answer>"}
        return "".join(special.get(token) or chr(token) for token in ids)


def open_toy(model: ModelOptions, spec: SpecOptions, settings: Settings, reporter: object) -> Session:
    drafters = [ToyDrafter()] if os.environ.get("TOY_DRAFT") and settings.drafters != () else []
    engine = Engine(
        ToyModel(),
        token_bytes=lambda token: bytes([token]) if token < EOS else b"",
        drafters=drafters,
        policy=settings.new_policy(),
    )
    return Session(
        engine=engine,
        encoder=ToyEncoder(),
        settings=settings,
        n_ctx=N_CTX,
        drafters=tuple(drafter.name for drafter in drafters),
        models={"model": "toy"},
    )


if __name__ == "__main__":
    opening.open_session = open_toy
    sys.exit(main())
