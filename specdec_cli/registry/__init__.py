"""Where models come from: aliases, sources, downloads, target and draft pairing."""

from specdec_cli.registry.catalog import Catalog, ModelEntry, load_catalog
from specdec_cli.registry.pairing import PairingReport, check_pairing
from specdec_cli.registry.progress import Progress, progress_for
from specdec_cli.registry.resolve import ResolvedModel, alias_of, find_local, resolve_model

__all__ = [
    "Catalog",
    "ModelEntry",
    "PairingReport",
    "Progress",
    "ResolvedModel",
    "alias_of",
    "check_pairing",
    "find_local",
    "load_catalog",
    "progress_for",
    "resolve_model",
]
