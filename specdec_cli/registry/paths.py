"""Where model files and settings lie on this machine. Every function reads the environment when called."""

import os
from pathlib import Path


def _xdg(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification says that a relative path is to be ignored.
    return Path(value) if value and Path(value).is_absolute() else Path.home() / fallback


def cache_dir() -> Path:
    """Root of everything that can be downloaded or computed again: `SPECDEC_CACHE_DIR` or the XDG cache."""
    value = os.environ.get("SPECDEC_CACHE_DIR", "")
    return Path(value).expanduser() if value else _xdg("XDG_CACHE_HOME", ".cache") / "specdec"


def models_cache_dir() -> Path:
    """Where downloaded model files land."""
    return cache_dir() / "models"


def extra_models_dir() -> Path | None:
    """A directory of the user's that is searched for the files of aliases before the cache is."""
    value = os.environ.get("SPECDEC_MODELS_DIR", "")
    return Path(value).expanduser() if value else None


def user_catalog_path() -> tuple[Path, bool]:
    """The user's own models.toml and whether it was asked for by name (then it must exist)."""
    value = os.environ.get("SPECDEC_MODELS_TOML", "")
    if value:
        return Path(value).expanduser(), True
    return _xdg("XDG_CONFIG_HOME", ".config") / "specdec" / "models.toml", False
