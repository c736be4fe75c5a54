"""Prompts as token ids: raw text, or messages through a chat template."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_cli.cli.settings import TemplateChoice
from specdec_cli.errors import ModelError

if TYPE_CHECKING:
    from specdec_cli.text.chat_template import ChatTemplate
    from specdec_cli.text.tokenizer import Tokenizer


class TemplateEncoder:
    """The tokenizer and template of a model. Raises ModelError for messages when there is no template."""

    def __init__(
        self,
        tokenizer: "Tokenizer",
        template: "ChatTemplate | None",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._variables = variables or {}

    @classmethod
    def of(
        cls, metadata: Mapping[str, Any], tokenizer: "Tokenizer", choice: TemplateChoice | None
    ) -> "TemplateEncoder":
        """Use the template that was asked for, else the model file's own; `choice` None: raw text only.

        Raises ModelError when the file has no template, with a suggestion.
        """
        if choice is None:
            return cls(tokenizer, None)
        from specdec_cli.text.chat_template import ChatTemplate

        template = ChatTemplate.from_model(metadata, tokenizer, choice.name_or_source)
        template.prepare()
        return cls(tokenizer, template, choice.variables)

    @property
    def eog_ids(self) -> frozenset[int]:
        """Tokens that end a generation."""
        return self._tokenizer.eog_ids

    def encode_text(self, text: str, *, allow_special: bool) -> list[int]:
        """Ids of a raw prompt, with BOS where the model wants one."""
        return self._tokenizer.encode(text, parse_special=allow_special, add_bos=True)

    def encode_messages(self, messages: Sequence[Mapping[str, Any]], *, allow_special: bool) -> list[int]:
        """Ids of a chat prompt that ends where the answer begins."""
        if self._template is None:
            raise ModelError("messages need a chat template")
        from specdec_cli.text.chat_template import encode_chat

        return encode_chat(
            self._tokenizer, self._template, messages, extra=self._variables, allow_special=allow_special
        )

    def prompt_text(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens written out."""
        return self._tokenizer.decode(ids, special=True)
