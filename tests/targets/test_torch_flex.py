"""torch FlexAttention's PagedAttention: `erase` clears a copy of its inverse map, so that attention reads erased pages."""

import warnings

import pytest

from properties.blocks.operations import Admit, Free, Geometry
from tests.targets.hunt import Hunt, adapter, breaches

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")


@pytest.fixture(name="make")
def _make():
    return adapter("torch-flex")


@pytest.fixture(name="mended")
def _mended(make, monkeypatch):
    """The same target with the one line of `erase` that was meant."""
    paged_attention = make().source.PagedAttention
    erase = paged_attention.erase

    def erase_the_map_too(self, batch_idx):
        erase(self, batch_idx)
        self.physical_to_logical[batch_idx] = -1

    monkeypatch.setattr(paged_attention, "erase", erase_the_map_too)
    return make


def test_the_stale_map_is_found_and_minimised(make):
    hunt = Hunt(make, num_seeds=50, until=["CONTENT-1"])

    _, operations, message = hunt.minimised("CONTENT-1")

    assert list(hunt.found) == ["CONTENT-1"]
    assert len(operations) == 3
    assert "is read" in message
    assert "released by A at step 2" in message


def test_the_trace_of_the_report_reads_the_other_sequence(make):
    # batch rows: A takes 0, B takes 0 after A was erased, C takes 1 and with it the page that row 0 still maps
    trace = [Admit("A", (0, 1, 2, 3)), Free("A"), Admit("B", (4, 5)), Admit("C", (6, 7))]

    found = breaches(make, Geometry(block_size=2, num_blocks=2), trace)

    assert set(found) == {"CONTENT-1"}
    assert "sequence B, position 0" in found["CONTENT-1"]


def test_nothing_else_is_wrong(mended):
    hunt = Hunt(mended, num_seeds=1200)

    assert hunt.found == {}
    assert hunt.unreached() == ({}, [])


def test_a_mended_erase_no_longer_breaks_the_trace(mended):
    trace = [Admit("A", (0, 1, 2, 3)), Free("A"), Admit("B", (4, 5)), Admit("C", (6, 7))]

    assert breaches(mended, Geometry(block_size=2, num_blocks=2), trace) == {}


def test_read_slots_are_what_the_mask_lets_attention_see(make):
    target = make()
    target.open(Geometry(block_size=2, num_blocks=4))
    target.admit("A", range(6))
    target.free("A")
    target.admit("B", range(3))
    target.admit("C", range(3))
    row = target.rows["B"]
    visible = target.paged.get_mask_mod(None, torch.full((4,), 3))
    everything = torch.arange(4 * 2)

    seen = everything[visible(torch.tensor(row), torch.tensor(0), torch.tensor(0), everything)].tolist()

    assert sorted(seen) == sorted(slot for position, slot in target.read_slots("B") if position < 3)
    assert len(seen) > 3  # the fault: more than the three tokens of B


def test_eager_attention_is_wrong_where_the_finding_says_so(make):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    target = make()
    target.open(Geometry(block_size=2, num_blocks=2))
    target.admit("A", range(4))
    target.free("A")
    target.admit("B", range(2))
    target.admit("C", range(2))
    paged, row = target.paged, torch.tensor([target.rows["B"]])
    cache = torch.zeros(1, 1, 4, 16)
    positions = torch.arange(2)[None]
    own = torch.ones(1, 1, 2, 16)
    paged.assign(row, positions, own, own, cache, cache)
    paged.assign(torch.tensor([target.rows["C"]]), positions, -own, -own, cache, cache)
    mask = create_block_mask(lambda b, h, q, k: k >= 0, 1, 1, 1, 2, device="cpu", BLOCK_SIZE=(1, 2))

    with warnings.catch_warnings():  # torch says once in a process that it runs uncompiled
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        output = flex_attention(
            torch.zeros(1, 1, 1, 16), cache, cache, block_mask=paged.convert_logical_block_mask(mask, row)
        )

    # B alone wrote ones, so a mean over its own tokens is one; over the pages that its row maps it is zero
    assert output.mean().item() == pytest.approx(0.0)
