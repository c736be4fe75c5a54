"""Errors raised by the quant package."""


class QuantError(Exception):
    """A file or tensor is broken, hostile or not supported; the message is one line that names it."""
