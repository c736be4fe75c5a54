"""What can go wrong between a model's name and a file on this machine."""

from specdec_cli.errors import SpecdecError


class CatalogError(SpecdecError):
    """A models.toml is broken; the message names the file, the key and the complaint."""


class ModelNotFoundError(SpecdecError):
    """A name is neither a file, a directory, a known alias nor a hub file, or it is not on this machine."""


class SourceError(SpecdecError):
    """One source could not deliver a file; the next one may. What a server said is made printable."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


class DownloadError(SpecdecError):
    """No source could deliver a file, or there is no room for it."""
