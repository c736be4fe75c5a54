"""`specdec quantize`: files that load and answer, cut vocabularies, refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.gguf_file import GgufFile
from quant.reference import dequantize
from specdec_cli.loader import LoadOptions, load_model
from specdec_cli.protocols import chain_rows

TEXT = "the thin than the"


def logits_of(path: Path, text: str) -> tuple[list[int], Any]:
    """Ids of a text and the logits after each of them, on the torch executor."""
    loaded = load_model(path, LoadOptions(executor="torch"))
    ids = loaded.tokenizer.encode(text)
    return ids, loaded.model.forward(chain_rows(loaded.model.create_sequence(), 0, ids, len(ids))).copy()


def test_q8_0_is_close_to_the_source(specdec: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    source, out = tiny_gguf("qwen2", n_embd=64), tmp_path / "out.gguf"
    done = specdec("quantize", str(source), str(out), "--type", "q8_0")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"{out}: ")
    assert "Q8_0" in done.err
    ids, expected = logits_of(source, TEXT)
    again, found = logits_of(out, TEXT)
    assert again == ids
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_vectors_stay_and_the_head_has_its_own_type(specdec: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    source = tiny_gguf("qwen2")
    done = specdec("quantize", str(source), str(out), "--type", "Q4_0", "--head-type", "F16", "-t", "1")
    assert done.code == 0
    with GgufFile.open(out) as file, GgufFile.open(source) as before:
        types = {name: tensor.qtype.name for name, tensor in file.tensors.items()}
        assert types["output.weight"] == "F16"
        assert types["token_embd.weight"] == types["blk.1.attn_v.weight"] == "Q4_0"
        for name in ("blk.0.attn_q.bias", "blk.1.ffn_norm.weight", "output_norm.weight"):
            assert types[name] == "F32"
            assert (file.tensors[name].data == before.tensors[name].data).all()
        assert file.metadata["tokenizer.chat_template"] == before.metadata["tokenizer.chat_template"]


def test_a_cut_vocabulary_gives_the_logits_of_its_tokens(
    specdec: Any, tiny_gguf: Any, tmp_path: Path
) -> None:
    source, out = tiny_gguf("llama", extra_tokens=30), tmp_path / "out.gguf"
    done = specdec("quantize", str(source), str(out), "--type", "F32", "--vocab", "262")
    assert done.code == 0, done.err
    ids, found = logits_of(out, "than the")
    assert max(ids) < 262
    assert len(ids) > len(logits_of(source, "than the")[0])  # " the" is gone and takes more tokens
    with GgufFile.open(out) as file, GgufFile.open(source) as before:
        kept = file.metadata["specdec.vocabulary.source_ids"]
        assert isinstance(kept, list)
        assert kept == list(range(262))
        head = dequantize(before.tensors["output.weight"])
        assert (dequantize(file.tensors["output.weight"]) == head[kept]).all()
    model = load_model(source, LoadOptions(executor="torch")).model
    rows = chain_rows(model.create_sequence(), 0, [kept[i] for i in ids], len(ids))
    assert (model.forward(rows)[:, kept] == found).all()


def test_an_existing_file_is_replaced_only_by_force(specdec: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    arguments = ("quantize", str(tiny_gguf()), str(out), "--type", "Q8_0")
    done = specdec(*arguments)
    assert (done.code, done.err) == (1, f"error: {out} exists already; --force replaces it\n")
    assert out.read_bytes() == b"precious"
    assert specdec(*arguments, "--force").code == 0
    assert out.read_bytes()[:4] == b"GGUF"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_a_quantized_source_is_pointed_out(specdec: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    source = tiny_gguf(file_type="Q8_0")
    done = specdec("quantize", str(source), str(tmp_path / "a.gguf"), "--type", "Q4_0")
    assert done.err.startswith(f"note: {source.name} is quantized already (mostly Q8_0);")
    done = specdec("quantize", str(source), str(tmp_path / "b.gguf"), "--type", "Q8_0")
    assert "note" not in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--type", "Q4_K_M"), 2, "--type Q4_K_M: no such type; there are Q4_0, Q4_1, Q5_0,"),
        (("--type", "Q4_0", "--head-type", "q9"), 2, "--head-type q9: no such type"),
        (("--type", "Q4_0", "--vocab", "many"), 2, "--vocab many: expected a number of tokens, or all"),
        (("--type", "Q4_0", "--vocab", "0"), 2, "--vocab 0: expected a number of tokens, or all"),
        (("--type", "Q4_0", "--vocab", "-5"), 2, "--vocab -5: expected a number of tokens, or all"),
        (
            ("--type", "Q4_0", "--vocab", "9999999999999"),
            1,
            "a vocabulary of 9999999999999 tokens: it has 265, of",
        ),
        (
            ("--type", "Q4_0", "--vocab", "100"),
            1,
            "a vocabulary of 100 tokens: it has 265, of which 259 are needed",
        ),
        (("--type", "Q4_0", "-t", "0"), 2, "the number of threads is 0"),
        ((), 2, "Missing option"),
    ],
)
def test_wrong_usage(
    specdec: Any, tiny_gguf: Any, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    out = tmp_path / "out.gguf"
    done = specdec("quantize", str(tiny_gguf()), str(out), *arguments)
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()


def test_bad_sources_and_places(specdec: Any, tiny_gguf: Any, tmp_path: Path, gguf_builder: Any) -> None:
    page = gguf_builder.write_bytes(b"<!DOCTYPE html><html>", "page.gguf")
    done = specdec("quantize", str(page), str(tmp_path / "out.gguf"), "--type", "Q8_0")
    assert (done.code, "an HTML page" in done.err) == (1, True)
    unknown = gguf_builder.write({}, {"a": np.zeros(4, np.float32)}, arch="mamba", name="m.gguf")
    done = specdec("quantize", str(unknown), str(tmp_path / "out.gguf"), "--type", "Q8_0")
    assert (done.code, 'unsupported architecture "mamba"' in done.err) == (1, True)
    done = specdec("quantize", str(tiny_gguf()), str(tmp_path / "no" / "out.gguf"), "--type", "Q8_0")
    assert (done.code, "does not exist" in done.err) == (1, True)
    assert not (tmp_path / "out.gguf").exists()


def test_values_that_cannot_be_quantized_name_the_tensor(
    specdec: Any, tiny_gguf: Any, tmp_path: Path
) -> None:
    source = tmp_path / "broken.gguf"
    data = bytearray(tiny_gguf().read_bytes())
    with GgufFile.open(tiny_gguf()) as file:
        at = bytes(data).index(file.tensors["blk.0.ffn_up.weight"].data[:64].tobytes())
    data[at : at + 4] = np.float32(np.nan).tobytes()
    source.write_bytes(data)
    done = specdec("quantize", str(source), str(tmp_path / "out.gguf"), "--type", "Q4_0")
    assert done.code == 1
    assert done.err.startswith("error: tensor 'blk.0.ffn_up.weight' holds values that are not finite")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


@pytest.mark.real
def test_smollm2_in_other_types_and_with_a_third_of_the_vocabulary(
    specdec: Any, model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    """The answers stay good: most of the likeliest tokens of a text are those of the source."""
    source = model_path("smollm2-135m")
    model = load_model(source, LoadOptions(executor="torch")).model
    text = (
        "The quick brown fox jumps over the lazy dog. Water boils at a hundred degrees Celsius at sea level."
    )
    for arguments, least in ((("--type", "Q4_K"), 0.8), (("--type", "Q8_0", "--vocab", "16384"), 0.85)):
        out = tmp_path / f"{arguments[1]}.gguf"
        assert specdec("quantize", str(source), str(out), *arguments).code == 0
        with GgufFile.open(out) as file:
            kept = file.metadata.get("specdec.vocabulary.source_ids", list(range(49152)))
        assert isinstance(kept, list)
        ids, found = logits_of(out, text)
        rows = chain_rows(model.create_sequence(), 0, [kept[i] for i in ids], len(ids))
        agreement = (model.forward(rows)[:, kept].argmax(1) == found.argmax(1)).mean()
        assert agreement >= least, f"{arguments}: {agreement}"
