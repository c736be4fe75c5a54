"""Errors raised by the quant package."""


class QuantError(Exception):
    """A file or tensor is broken, hostile or of an unsupported kind; the message is one line that names what."""
