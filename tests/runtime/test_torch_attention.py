"""Chunked attention against the textbook formula, and its bits."""

import pytest
import torch

from specdec_cli.runtime.ops import AttentionSpec
from specdec_cli.runtime.torch_attention import CHUNK, attend, chunk_partials, merge, probe_attention

pytestmark = pytest.mark.torch
CHUNKS = 4


def spec(n_head=6, n_head_kv=2, head_dim=16, *, softcap=None):
    return AttentionSpec(
        layer=0, n_head=n_head, n_head_kv=n_head_kv, head_dim=head_dim, scale=1.0, rope=None, softcap=softcap
    )


class Example:
    """Queries at the last positions of CHUNKS chunks of keys."""

    def __init__(self, geometry: AttentionSpec, rows: int, window: int | None = None) -> None:
        generator = torch.Generator().manual_seed(11)
        shape = (CHUNKS, geometry.n_head_kv, CHUNK, geometry.head_dim)
        self.spec = geometry
        self.q = torch.randn(rows, geometry.n_head * geometry.head_dim, generator=generator)
        self.k = torch.randn(shape, generator=generator)
        self.v = torch.randn(shape, generator=generator)
        positions = torch.arange(CHUNKS * CHUNK - rows - 7, CHUNKS * CHUNK - 7)[:, None]
        keys = torch.arange(CHUNKS * CHUNK)
        seen = keys <= positions
        if window is not None:
            seen &= keys > positions - window
        self.mask = seen.view(rows, CHUNKS, CHUNK).transpose(0, 1)

    def run(self, start: int, stop: int, first_chunk: int = 0, cut: int = 1) -> torch.Tensor:
        mask = self.mask[:, start:stop]
        cut = max(cut, first_chunk)
        parts = [
            (self.k[a:b], self.v[a:b], mask[a:b]) for a, b in ((first_chunk, cut), (cut, CHUNKS)) if a < b
        ]
        return attend(self.q[start:stop], parts, self.spec, chunks_together=True)

    def expected(self) -> torch.Tensor:
        """Softmax over all positions at once, in float64."""
        s = self.spec
        rows, group = self.q.shape[0], s.n_head // s.n_head_kv
        q = self.q.double().view(rows, s.n_head, s.head_dim).transpose(0, 1)
        k, v = (
            x.double().transpose(0, 1).reshape(s.n_head_kv, -1, s.head_dim).repeat_interleave(group, 0)
            for x in (self.k, self.v)
        )
        scores = q @ k.transpose(1, 2)
        if s.softcap is not None:
            scores = torch.tanh(scores / s.softcap) * s.softcap
        mask = self.mask.transpose(0, 1).reshape(rows, -1)
        weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
        return (weights @ v).transpose(0, 1).reshape(rows, -1).float()


@pytest.mark.parametrize(
    ("geometry", "window"),
    [
        (spec(), None),
        (spec(), 30),
        (spec(), 150),
        (spec(4, 4), None),
        (spec(7, 1), 100),
        (spec(softcap=5.0), None),
    ],
)
def test_equals_the_textbook_formula(geometry, window):
    example = Example(geometry, 16, window)
    torch.testing.assert_close(example.run(0, 16), example.expected(), rtol=1e-4, atol=1e-5)


def test_a_chunk_that_a_row_does_not_see_changes_no_bit():
    example = Example(spec(), 16, window=40)
    assert not example.mask[:2].any()
    assert torch.equal(example.run(0, 16), example.run(0, 16, first_chunk=2))


def test_a_fully_masked_chunk_contributes_zero_whatever_it_holds():
    geometry = spec(2, 1, 8)
    q, k = torch.randn(1, 2, 8), torch.full((1, 1, CHUNK, 8), torch.nan)
    part = chunk_partials(q, k, torch.ones_like(k), torch.zeros(1, 1, CHUNK, dtype=torch.bool), None)
    assert not part.total.any()
    assert not part.values.any()
    seen = chunk_partials(
        q, torch.ones_like(k), torch.ones_like(k), torch.ones(1, 1, CHUNK, dtype=torch.bool), None
    )
    assert torch.equal(merge([part, seen]), merge([seen]))
    assert torch.equal(merge([seen, part]), merge([seen]))
    assert geometry.n_head == 2


def test_large_scores_do_not_overflow():
    example = Example(spec(), 16)
    example.q *= 1000
    result = example.run(0, 16)
    assert result.isfinite().all()
    torch.testing.assert_close(result, example.expected(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "geometry", [spec(), spec(9, 3, 64), spec(14, 2, 64), spec(4, 1, 256), spec(12, 2, 128)]
)
def test_the_probe_finds_tiles_for_usual_geometries(geometry):
    tiling, thread_safe = probe_attention(geometry, threads=1)
    assert tiling.chunks_together
    assert thread_safe
    example = Example(geometry, 16)
    for size in tiling.rows.sizes:
        for start in range(0, 16, size):
            for cut in (1, 2, 3):
                assert torch.equal(
                    example.run(start, start + size, cut=cut), example.run(0, 16)[start : start + size]
                )


def test_the_probe_gives_up_on_kernels_that_vary(monkeypatch):
    real = torch.bmm

    def varying(a, b):
        return real(a, b) * (1 + 1e-3 * (a.shape[0] % 7))

    monkeypatch.setattr(torch, "bmm", varying)
    tiling, _ = probe_attention(spec(), threads=1)
    assert tiling.rows.sizes == (1,)
    assert not tiling.chunks_together


def test_chunk_by_chunk_gives_the_same_values():
    example = Example(spec(), 1)
    parts = [(example.k, example.v, example.mask)]
    result = attend(example.q, parts, example.spec, chunks_together=False)
    torch.testing.assert_close(result, example.expected(), rtol=1e-4, atol=1e-5)
