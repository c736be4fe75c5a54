"""Which file of a directory or repository is meant when only the directory or repository is named."""

import re
from collections.abc import Iterable

_SHARD = re.compile(r"(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_MAX_SHARDS = 1000


def shard_names(name: str) -> list[str]:
    """All files of the model that `name` belongs to, in order: itself, or every shard of a split one.

    Shards are called STEM-00001-of-00003.gguf; a number out of range makes it an ordinary name.
    """
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    index, count = int(match["index"]), int(match["count"])
    if not (1 <= index <= count <= _MAX_SHARDS):
        return [name]
    suffix = name[match.end("count") :]
    return [f"{match['stem']}-{i:05d}-of-{match['count']}{suffix}" for i in range(1, count + 1)]


def model_candidates(names: Iterable[str]) -> list[str]:
    """Return the GGUF files that can stand for a model, sorted: first shards, no image projectors."""
    found = set()
    for name in names:
        base = name.rsplit("/", 1)[-1].lower()
        if base.endswith(".gguf") and not base.startswith(".") and "mmproj" not in base:
            found.add(shard_names(name)[0])
    return sorted(found)


def preferred(candidates: list[str]) -> str | None:
    """Return the only candidate, else the only Q4_K_M among them, else None."""
    if len(candidates) == 1:
        return candidates[0]
    common = [name for name in candidates if "q4_k_m" in name.lower()]
    return common[0] if len(common) == 1 else None
