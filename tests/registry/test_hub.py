"""Hub files: a fake client for the rules, and the real client against a small server on this machine."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec_cli.registry.catalog import HubSource
from specdec_cli.registry.errors import SourceError
from specdec_cli.registry.hub import HuggingFaceHub, fetch_hub

DATA = os.urandom(5000)
SHA = hashlib.sha256(DATA).hexdigest()
BIG = os.urandom(1 << 20) * 24
BIG_SHA = hashlib.sha256(BIG).hexdigest()
SOURCE = HubSource("own/repo", "model.gguf")


def test_a_file_lands_and_staging_is_gone(tmp_path: Path, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}})
    fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub, sha256=SHA, size=5000)
    assert (tmp_path / "m.gguf").read_bytes() == DATA
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    assert recorder.starts == [("m.gguf", 5000)]


def test_without_a_pinned_sha256_the_hubs_own_counts(tmp_path: Path, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}})
    fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub)
    assert (tmp_path / "m.gguf").read_bytes() == DATA


def test_a_file_that_nobody_vouches_for_is_refused(tmp_path: Path, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}}, publish_sha256=False)
    with pytest.raises(SourceError, match="no published sha256"):
        fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub)
    fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub, sha256=SHA)
    assert (tmp_path / "m.gguf").exists()


def test_another_file_under_the_name_is_not_even_downloaded(tmp_path: Path, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}})
    with pytest.raises(SourceError, match=f"has sha256 {SHA} there, expected 0000"):
        fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub, sha256="0" * 64)
    assert hub.downloads == []


def test_a_download_that_is_wrong_is_dropped(tmp_path: Path, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}}, publish_sha256=False)
    with pytest.raises(SourceError, match="expected 0000"):
        fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_what_was_downloaded_before_a_break_is_kept(tmp_path: Path, make_hub, recorder) -> None:
    hub = make_hub({"own/repo": {"model.gguf": DATA}}, fail_after=2000)
    with pytest.raises(SourceError, match="connection lost"):
        fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub, sha256=SHA)
    assert not (tmp_path / "m.gguf").exists()
    fetch_hub(SOURCE, tmp_path / "m.gguf", recorder, client=hub, sha256=SHA)
    assert hub.resumed_from == [0, 2000]
    assert (tmp_path / "m.gguf").read_bytes() == DATA


def test_offline_is_one_clear_line() -> None:
    with pytest.raises(SourceError) as caught:
        HuggingFaceHub().describe(SOURCE)
    assert "\n" not in str(caught.value)
    assert "HF_HUB_OFFLINE" in str(caught.value) or "cannot be reached" in str(caught.value)


class _Handler(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as resolving one file takes; the first download breaks off half way."""

    broken = False
    ranges: list[str | None]

    def _headers(self, status: int, start: int) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{BIG_SHA}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(BIG) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(BIG) - 1}/{len(BIG)}")
        self.end_headers()

    def do_HEAD(self) -> None:
        self._headers(200, 0) if self.path.endswith("model.gguf") else self.send_error(404)

    def do_GET(self) -> None:
        if "/api/models/own/repo" in self.path:
            file = {"type": "file", "path": "model.gguf", "size": len(BIG), "oid": "b" * 40}
            document = {"id": "own/repo", "siblings": [{"rfilename": "model.gguf"}]}
            body = json.dumps([file] if "/tree/" in self.path else document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        asked = self.headers.get("Range")
        type(self).ranges.append(asked)
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self._headers(206 if start else 200, start)
        if self.path.startswith("/own/repo") and not type(self).broken:
            type(self).broken = True
            self.wfile.write(BIG[: len(BIG) * 5 // 8])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(BIG[start:])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Handler.broken, _Handler.ranges = False, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_the_real_client_resolves_resumes_and_verifies(server: str, tmp_path: Path) -> None:
    """In a process of its own, because the library reads its endpoint when it is imported."""
    program = (
        "from specdec_cli.registry.resolve import resolve_model\n"
        "print(resolve_model('hf:own/repo', pull=True).path)\n"
    )
    environment = os.environ | {
        "HF_ENDPOINT": server,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    path = Path(run.stdout.strip())
    assert path == tmp_path / "cache" / "models" / "hf" / "own" / "repo" / "model.gguf"
    assert path.read_bytes() == BIG
    assert sorted(p.name for p in path.parent.iterdir()) == [".model.gguf.lock", "model.gguf"]
    # The library writes in pieces of 10 MiB and goes on after the last whole one.
    resumed = [asked for asked in _Handler.ranges if asked is not None and not asked.startswith("bytes=0-")]
    assert resumed, _Handler.ranges
