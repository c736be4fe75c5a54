"""Loaded models, template and engine: what a command needs to turn messages into text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from specdec_cli.cli.settings import Settings
from specdec_cli.decoding.types import GenerationRequest

if TYPE_CHECKING:
    from specdec_cli.engine import Engine

Message = dict[str, Any]


class Encoder(Protocol):
    """Prompts as token ids, and back."""

    @property
    def eog_ids(self) -> frozenset[int]:
        """Tokens that end a generation."""
        ...

    def encode_text(self, text: str, *, allow_special: bool) -> list[int]:
        """Ids of a raw prompt, BOS included where the model wants one."""
        ...

    def encode_messages(self, messages: Sequence[Message], *, allow_special: bool) -> list[int]:
        """Ids of a chat prompt that ends where the assistant's answer begins."""
        ...

    def prompt_text(self, ids: Sequence[int]) -> str:
        """What the ids stand for, control tokens written out."""
        ...


def messages(system: str | None, question: str) -> list[Message]:
    """A conversation of one question."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question}]


@dataclass(slots=True)
class Session:
    """An engine with its encoder and settings. A context manager: leaving it frees the engine's sequences."""

    engine: "Engine"
    encoder: Encoder
    settings: Settings
    n_ctx: int
    drafters: tuple[str, ...]  # names of those that take part
    models: dict[str, Any]  # what is loaded and how, for JSON output
    why_plain: Callable[[], str | None] = lambda: None  # why decoding became plain, if it did

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Token ids of a raw text or of messages."""
        allow_special = self.settings.allow_special
        if isinstance(prompt, str):
            return self.encoder.encode_text(prompt, allow_special=allow_special)
        return self.encoder.encode_messages(prompt, allow_special=allow_special)

    def prompt_text(self, ids: Sequence[int]) -> str:
        """The prompt as the model sees it."""
        return self.encoder.prompt_text(ids)

    def request(self, prompt_ids: Sequence[int], *, session: str | None = None) -> GenerationRequest:
        """Return a request; those with the same `session` reuse each other's prompt prefix."""
        return GenerationRequest(
            prompt_ids=tuple(prompt_ids),
            sampling=self.settings.sampling,
            max_tokens=self.settings.max_tokens,
            stop=self.settings.stop,
            eog_ids=self.encoder.eog_ids,
            session=session,
        )

    def describe(self) -> dict[str, Any]:
        """The `settings` of JSON output."""
        return {
            **self.models,
            "ctx_size": self.n_ctx,
            **self.settings.as_dict(),
            "drafters": list(self.drafters),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.close()
