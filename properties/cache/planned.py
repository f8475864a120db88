"""What a step has planned to write and has not written yet, layer by layer."""

from __future__ import annotations


class Planned:
    """The positions that count as computed from when the step is planned, and hold nothing until its layers are written."""

    def __init__(self, num_layers: int) -> None:
        self._last = num_layers - 1
        self._first: dict[str, int] = {}
        self._next_layer = 0

    def begin(self) -> None:
        """A new operation: nothing is planned."""
        self._first, self._next_layer = {}, 0

    def plan(self, name: str, first: int) -> None:
        """Positions of a sequence from `first` on will be written."""
        self._first[name] = first

    def written(self, layer: int) -> None:
        """All that is planned is written in this layer, and in those before it."""
        self._next_layer = layer + 1
        if layer == self._last:
            self.begin()

    def first_unwritten(self, name: str, layer: int, computed: int) -> int:
        """The first position of a sequence whose slot holds nothing of it in that layer; `computed` where none is planned."""
        return self._first.get(name, computed) if layer >= self._next_layer else computed
