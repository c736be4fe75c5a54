"""Chat messages to a prompt: which template, rendering it, and tokenizing the result."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from specdec_cli.errors import ModelError, UsageError
from specdec_cli.text.builtin_templates import BUILTIN_TEMPLATES
from specdec_cli.text.placeholders import ContentGuard
from specdec_cli.text.template_process import RENDERER, TemplateError, TemplateLimits, one_line
from specdec_cli.text.tokenizer import Tokenizer

Message = Mapping[str, Any]  # "role" and mostly "content"; what else there is depends on the template

_DEFAULT_LIMITS = TemplateLimits()
_KEY = "tokenizer.chat_template"


def choose_template(metadata: Mapping[str, Any], choice: str | None = None, *, tools: bool = False) -> str:
    """Source of the template to use: `choice` (a built-in name, or Jinja source), else the file's own.

    With `tools` the file's template for tool use is preferred, if it has one. Raises UsageError when
    `choice` is neither a name nor a template, ModelError when the file has none.
    """
    if choice is not None:
        return template_source(choice)
    keys = [f"{_KEY}.tool_use", _KEY] if tools else [_KEY]
    for key in [*keys, f"{_KEY}.default"]:
        source = metadata.get(key)
        if source is None:
            continue
        if not isinstance(source, str):
            raise ModelError(f"{key} must be a string, not {type(source).__name__}")
        if source.strip():
            return source
    raise ModelError(
        "the model file has no chat template; choose one with --chat-template "
        f"({', '.join(BUILTIN_TEMPLATES)}) or continue plain text with --raw"
    )


def template_source(name_or_source: str) -> str:
    """Jinja source of a built-in name, or what is Jinja source already. Raises UsageError for neither."""
    if name_or_source in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[name_or_source]
    if "{{" in name_or_source or "{%" in name_or_source:
        return name_or_source
    names, given = ", ".join(BUILTIN_TEMPLATES), one_line(name_or_source, 60)
    raise UsageError(f"chat template {given!r} is neither Jinja source nor one of {names}")


class ChatTemplate:
    """A Jinja template that turns messages into the text of a prompt. Rendered in a separate process."""

    def __init__(
        self, source: str, *, bos_text: str = "", eos_text: str = "", limits: TemplateLimits = _DEFAULT_LIMITS
    ) -> None:
        """`source` may also be the name of a built-in template. Raises UsageError when it is neither."""
        self.source = template_source(source)
        self.bos_text = bos_text
        self.eos_text = eos_text
        self._limits = limits
        self._guards: tuple[Tokenizer, ContentGuard] | None = None

    @classmethod
    def from_model(
        cls,
        metadata: Mapping[str, Any],
        tokenizer: Tokenizer,
        choice: str | None = None,
        *,
        tools: bool = False,
    ) -> Self:
        """The template to use with a model, and the texts of its BOS and EOS. See `choose_template`."""

        def text_of(token_id: int | None) -> str:
            return "" if token_id is None else tokenizer.token_text(token_id)

        source = choose_template(metadata, choice, tools=tools)
        return cls(source, bos_text=text_of(tokenizer.bos_id), eos_text=text_of(tokenizer.eos_id))

    def prepare(self) -> None:
        """Start the process that renders, so that `render` need not wait for it (0.1 s)."""
        RENDERER.start(self._limits)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> str:
        """Text of the prompt, as the template writes it. `extra` are further variables.

        Raises TemplateError when the template is broken, hostile or refuses the messages, or leaves out a
        system or user message; UsageError when something handed over cannot be expressed in JSON.
        """
        _check_messages(messages)
        variables: dict[str, Any] = {
            "bos_token": self.bos_text,
            "eos_token": self.eos_text,
            "tools": tools,
            "documents": None,
            **(extra or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = RENDERER.render(self.source, variables, self._limits)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"chat template variables must be plain JSON values: {error}") from None
        _check_complete(messages, text)
        return text

    def guard(self, tokenizer: Tokenizer) -> ContentGuard:
        """What keeps content from becoming control tokens of this tokenizer (kept for the next call)."""
        if self._guards is None or self._guards[0] is not tokenizer:
            self._guards = (tokenizer, ContentGuard(tokenizer.vocabulary, self.source))
        return self._guards[1]


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
    allow_special: bool = False,
) -> list[int]:
    """Ids of the prompt for a conversation, with exactly one BOS if the model wants one.

    The template's own control texts become control tokens; the same texts inside messages, tools and
    `extra` stay ordinary text unless `allow_special`. For content without such texts the ids are those of
    tokenizing the whole rendered prompt. Raises what `ChatTemplate.render` raises.
    """
    given: dict[str, Any] = {"messages": list(messages), "tools": tools, "extra": dict(extra or {})}
    if allow_special:
        text = template.render(
            messages, add_generation_prompt=add_generation_prompt, extra=extra, tools=tools
        )
        return tokenizer.encode(text, parse_special=True, add_bos=True)
    unlike = (template.source, template.bos_text, template.eos_text)
    hidden, placeholders = template.guard(tokenizer).protect(given, also_unlike=unlike)
    try:
        text = template.render(
            hidden["messages"],
            add_generation_prompt=add_generation_prompt,
            extra=hidden["extra"],
            tools=hidden["tools"],
        )
    except TemplateError as error:
        raise TemplateError(placeholders.restore_text(str(error))) from None
    fragments = placeholders.restore(tokenizer.split_special(text, parse_special=True))
    return tokenizer.with_bos(tokenizer.encode_fragments(fragments))


def _check_messages(messages: Sequence[Message]) -> None:
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f"message {i + 1} has no role")


def _check_complete(messages: Sequence[Message], text: str) -> None:
    """Some templates silently skip roles that they do not know: the answer would be to something else."""
    for message in messages:
        content = message.get("content")
        if message["role"] in ("system", "user") and isinstance(content, str):
            lines = [line.strip() for line in content.splitlines() if line.strip()]
            if lines and not any(line in text for line in lines):
                raise TemplateError(f"the chat template leaves out the {message['role']} message")
