"""What a finding on tensors of a cache says, so that somebody can act on it."""

from collections.abc import Sequence

import msgspec
import pytest
from torch import Tensor

from properties.blocks.operations import Admit
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import Row
from properties.contract import Breach
from properties.specs import spec_of
from properties.trial import run_trace
from tests.cache.sharing_cache import SharingCache

SPEC = spec_of("cache")
GEOMETRY = CacheGeometry(block_size=2, num_blocks=4, num_layers=2, poison_k="zero", poison_v="zero")


class Misplaces(SharingCache):
    """Values, or keys and values, go somewhere else."""

    mistake = ""

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        slots = [slot for row in rows for slot in self.slots(row.name)[row.start : row.stop]]
        self.flat(layer)[0, slots] = keys
        if self.mistake == "layer":
            self.flat(max(layer - 1, 0))[1, slots] = values
        elif self.mistake == "kind":
            self.flat(layer)[0, slots], self.flat(layer)[1, slots] = values, keys
        else:
            self.flat(layer)[1, [slot + 1 for slot in slots]] = values


class CountsFromTheRow(SharingCache):
    """A mask of positions that are counted from the first of the row."""

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        out = super().read(layer, rows, queries)
        for at, row in enumerate(rows):
            if len(rows) == len(queries):  # decode
                out[at] = self.attend(layer, self.slots(row.name)[:1], queries[at])
        return out


def _breach(target: type[SharingCache], clause: str, tokens: tuple[int, ...]) -> Breach:
    geometry = msgspec.structs.replace(GEOMETRY, dtype="float32")
    assert run_trace(SPEC, SharingCache, geometry, [Admit("A", tokens)]).breaches == []
    breaches = run_trace(SPEC, target, geometry, [Admit("A", tokens)]).breaches
    return next(breach for breach in breaches if breach.property == clause)


@pytest.mark.parametrize(
    ("mistake", "where"),
    [
        ("layer", "layer 1, values: slot 0 (block 0, offset 0) was to be written and does not hold the bits that were "
         "given, which are in slot 0 of layer 0, values; 1 of 1 slot are wrong"),
        ("kind", "given, which are in slot 0 of layer 0, values; 1 of 1"),
        ("slot", "given, which are in slot 1 of layer 0, values; 1 of 1"),
    ],
)  # fmt: skip
def test_what_was_written_elsewhere_is_told_with_the_place(mistake: str, where: str) -> None:
    target = type("Target", (Misplaces,), {"mistake": mistake})

    assert where in _breach(target, "STORE-1", (7,)).message


def test_a_wrong_read_names_its_row_and_the_mask_that_gives_it() -> None:
    message = _breach(CountsFromTheRow, "READ-1", (7, 8, 7)).message

    assert "query at position 2 of 3 tokens, in the row [2, 3): " in message
    assert "the output is that of: the causal mask aligned at the top left (" in message
