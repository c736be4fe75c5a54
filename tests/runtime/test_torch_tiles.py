"""Row tiles: the cover of any number of rows, and a probe that notices what is not invariant."""

import pytest
import torch

from specdec_cli.runtime.torch_tiles import (
    REFERENCE_TILE,
    TILES,
    Tiling,
    apply_tiled,
    probe,
    tile_rows,
    tiles,
)

pytestmark = pytest.mark.torch


def product(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(-1, 1, 24 * x.shape[1]).reshape(24, -1)
    return x @ weight.T


@pytest.mark.parametrize("sizes", [(128, 16, 8), (16,), (16, 4), (1,)])
def test_tiles_cover_every_row_once_in_order(sizes):
    for n in range(300):
        covered = list(tiles(n, Tiling(sizes)))
        assert [row for start, stop, _ in covered for row in range(start, stop)] == list(range(n))
        assert all(size in sizes and 0 < stop - start <= size for start, stop, size in covered)


def test_a_short_tile_is_padded_with_zero_rows():
    x = torch.ones(5, 3)
    tile = tile_rows(x, 4, 5, 8)
    assert tile.shape == (8, 3)
    assert torch.equal(tile[0], x[4])
    assert not tile[1:].any()


def test_the_probe_admits_elementwise_work_in_all_tiles():
    assert probe(lambda x: x * 3, 10, threads=1) == Tiling(TILES, thread_safe=True)


def test_the_probe_rejects_what_depends_on_the_slot():
    slot = torch.arange(4096)[:, None].float()
    assert probe(lambda x: x + 1e-3 * slot[: x.shape[0]], 10, threads=1).sizes == (1,)


def test_the_probe_rejects_what_depends_on_other_rows():
    assert probe(lambda x: x - x.mean(0), 10, threads=1).sizes == (1,)


@pytest.mark.parametrize("bad", [size for size in TILES if size != REFERENCE_TILE])
def test_the_probe_leaves_out_a_tile_size_that_rounds_otherwise(bad):
    tiling = probe(lambda x: x * (1.0001 if x.shape[0] == bad else 1), 10, threads=1)
    assert tiling.sizes == tuple(size for size in TILES if size != bad)


def test_the_probe_notices_threads_that_matter_and_restores_their_number():
    before = torch.get_num_threads()
    try:
        tiling = probe(lambda x: x + torch.get_num_threads(), 10, threads=2)
        assert not tiling.thread_safe
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", [1, 7, 33, 64, 100])
def test_a_probed_product_has_the_same_bits_for_every_number_of_rows(width):
    tiling = probe(product, width, threads=1)
    x = torch.randn(150, width, generator=torch.Generator().manual_seed(3))
    whole = apply_tiled(product, x, tiling)
    torch.testing.assert_close(whole, product(x))
    for n in range(1, 34):
        assert torch.equal(apply_tiled(product, x[:n], tiling), whole[:n])
        assert torch.equal(apply_tiled(product, x[50 - n : 50], tiling), whole[50 - n : 50])


def test_row_by_row_work_gives_the_same_values():
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(apply_tiled(product, x, Tiling((1,))), product(x))
