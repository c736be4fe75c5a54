"""Errors that a user can act on. The command line prints each as one line; `--debug` adds the traceback."""


class SpecdecError(Exception):
    """Base of every expected failure; the message is one line that says what is wrong and what to do."""

    exit_code = 1


class UsageError(SpecdecError):
    """The options or their combination are wrong (exit code 2)."""

    exit_code = 2


class ModelError(SpecdecError):
    """A model file, tokenizer or template is broken, hostile or not supported."""


class PairingError(SpecdecError):
    """The draft model cannot propose for the target: their vocabularies differ."""


class StoppedError(SpecdecError):
    """A forward pass ended before it was complete, because nobody wants its result any more."""


class ContextError(SpecdecError):
    """A sequence would hold more tokens than the context (`n_ctx`) allows."""
