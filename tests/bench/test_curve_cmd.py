"""`specdec bench --curve` on tiny models."""

import pytest

from specdec_cli.cli import bench_curve


@pytest.fixture
def model(tiny_gguf):
    return tiny_gguf("qwen2", n_ctx=256)


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch):
    """Reading 256 MB is for real measurements."""
    monkeypatch.setattr("specdec_cli.bench.bandwidth._BYTES", 1 << 20)
    monkeypatch.setattr("specdec_cli.bench.bandwidth.read_bandwidth", lambda threads: 12.5 * threads)


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_the_keys_of_comparable_tools(specdec, model, executor):
    done = specdec("bench", "--curve", "-m", model, "-t", 1, "-r", 2, "--executor", executor, "-o", "json")
    assert done.code == 0, done.err
    document = done.json
    assert document["model"] == model.name
    assert document["threads"] == 1
    assert document["executor"] == executor
    assert document["isa"] == "torch" if executor == "torch" else document["isa"] != "torch"
    for key in ("load_s", "decode_tps", "prefill_tps", "decode_gb_per_s"):
        assert document[key] > 0, key
    assert document["peak_rss_mb"] > 10
    assert list(document["t_ms"]) == [str(m) for m in range(1, 17)]
    assert document["t_ratio"]["1"] == 1
    assert document["prefill_tps_by_length"]["512"] is None  # more than the context
    assert document["read_gb_per_s"] == 12.5
    assert "draft_model" not in document


def test_a_draft_model_and_depths(specdec, model, tiny_gguf):
    draft = tiny_gguf("llama", n_ctx=256)
    done = specdec(
        "bench", "--curve", "-m", model, "-md", draft, "-r", 1, "-t", 1, "--depth", "0,100", "-o", "json"
    )
    assert done.code == 0, done.err
    assert done.json["draft_model"]["model"] == draft.name
    assert [at["depth"] for at in done.json["depths"]] == [0, 100]
    assert done.json["t_ms"] == done.json["depths"][0]["t_ms"]


def test_text_and_csv(specdec, model):
    common = ("bench", "--curve", "-m", model, "-r", 1, "-t", 1)
    lines = specdec(*common).out.splitlines()
    assert lines[0].startswith(model.name)
    assert "prefill" in lines[2]
    assert "n/a (512 tokens)" in lines[2]
    assert "of the 12.5 GB/s that this machine reads" in lines[3]
    assert sum(line.startswith("|") for line in lines) == 2 + 16
    csv = specdec(*common, "-o", "csv").out.splitlines()
    assert csv[0] == "model,depth,rows,t_ms,t_ratio"
    assert len(csv) == 17


def test_a_depth_that_does_not_fit(specdec, model):
    done = specdec("bench", "--curve", "-m", model, "-r", 1, "-c", 200, "--depth", 100)
    assert done.code == 2
    assert "--depth 100 needs a context of 212 tokens, the model is loaded with 200" in done.err


def test_bytes_of_a_pass_leave_an_embedding_table_of_its_own_out(tiny_gguf):
    file_bytes, tied = bench_curve._sizes(tiny_gguf("qwen2", tied=True))
    _, untied = bench_curve._sizes(tiny_gguf("qwen2"))
    assert tied == untied  # the head is read once in both
    assert 0 < tied < file_bytes


def test_the_plot_of_curves(specdec, model, tmp_path):
    path = tmp_path / "curve.png"
    assert specdec("bench", "--curve", "-m", model, "-r", 1, "--plot", path).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
