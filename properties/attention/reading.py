"""The calls of one case of a decode or prefill, each on a fresh scene, and what each got wrong.

Letters: T query tokens, H query heads, D head size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace
from torch import Tensor

from paged_ref.parity import Comparison, Expected, compare, compare_lse
from properties.attention.buffers import bytes_of
from properties.attention.cases import ReadCase, Row, rows_of
from properties.attention.contents import Content, expect_row, make_contents
from properties.attention.execute import Fault, Refused, check_output, execute
from properties.attention.guarding.protection import reading
from properties.attention.scene import Scene, build
from properties.attention.target import AttentionTarget, Output
from properties.contract import AdapterError

AGAIN = 2
"""How often a wrong call is made again before something else is taken to be the cause: a race is not lost each time."""


@dataclass(frozen=True)
class Wrong:
    """One row that a call got wrong; `actual` is its output, or its LSE where `what` is "lse"."""

    row: Row
    what: str
    comparison: Comparison
    actual: Tensor


@dataclass(frozen=True)
class Reading:
    """One call: its scene, its output on the CPU (None if it failed), and what is wrong with it.

    `changed_bytes`: of the pool and around it; `changed_queries`: bytes of the queries and around them.
    """

    scene: Scene
    output: Output | None
    wrong: tuple[Wrong, ...]
    fault: Fault | Refused | None = None
    changed_bytes: int = 0
    changed_queries: int = 0

    @property
    def right(self) -> bool:
        """Every row is within its limits, and nothing else happened."""
        return self.output is not None and not self.wrong and not self.wrote

    @property
    def wrote(self) -> bool:
        """Whether the call changed what it was given."""
        return self.changed_bytes > 0 or self.changed_queries > 0


class Judge:
    """Runs and compares the calls of one case. `contents` and expectations are made once, from the base
    case.
    """

    def __init__(self, target: AttentionTarget, case: ReadCase, device: str) -> None:
        self.target, self.case, self.device = target, case, device
        self.capabilities = target.capabilities
        self.contents = make_contents(case)
        self.expected = {
            row.key: expect_row(case, self.contents[row.key], tf32=self.capabilities.tf32) for row in case.rows
        }

    def read(self, case: ReadCase, contents: Mapping[int, Content], *, want_lse: bool = True) -> Reading:
        """One call on a fresh scene, compared row by row."""
        scene = build(case, contents, self.device, want_lse=want_lse and self.capabilities.lse_base is not None)
        before, queries = scene.memory.snapshot(), bytes_of(scene.batch.q)
        queries_before = queries.clone()
        operation = getattr(self.target, case.operation)
        strict = self.capabilities.reads_only_owned
        protected = reading(scene.memory, scene.owners, case.block_size, strict=strict)
        result = execute(self.target, lambda: operation(scene.memory.pool, scene.batch), protected, device=self.device)
        if isinstance(result, Fault | Refused):
            return Reading(scene, None, (), result)
        output = check_output(self.target, result, scene.batch.q)
        if scene.batch.want_lse and output.lse is None:
            raise AdapterError(
                f"{self.target.name} declares lse_base={self.capabilities.lse_base!r} and returned no LSE though "
                "batch.want_lse is set",
                "return Output(out, lse), lse float32 of shape [T, H], or declare lse_base=None",
            )
        lse = None  # one that was not asked for may be a buffer that nobody wrote
        if scene.batch.want_lse and output.lse is not None:
            lse = output.lse.detach().cpu() * self._lse_unit()
        # A copy: the target may keep one output for all of its calls.
        output = Output(output.out.detach().to("cpu", copy=True), lse)
        return Reading(
            scene,
            output,
            tuple(self._compare(scene, output)),
            changed_bytes=scene.memory.changed_bytes(before),
            changed_queries=int((queries != queries_before).sum()),
        )

    def clean_is_right(self, case: ReadCase, contents: Mapping[int, Content]) -> bool:
        """Whether a case is right in a clean pool."""
        return self.read(self.clean(case), contents).right

    def clean(self, case: ReadCase) -> ReadCase:
        """The case in a pool of zeros, with table padding of zeros where the target takes that."""
        padding = "zero" if "zero" in self.capabilities.padding else case.padding
        return replace(case, poison_k="zero", poison_v="zero", padding=padding)

    def right_when_repeated(self, case: ReadCase, contents: Mapping[int, Content], *, want_lse: bool = True) -> bool:
        """Whether a case that was wrong is right when the same call is made again, a few times over."""
        return any(self.read(case, contents, want_lse=want_lse).right for _ in range(AGAIN))

    def leaks(self, case: ReadCase, contents: Mapping[int, Content]) -> bool:
        """Whether a case that was wrong is wrong again, and right on a clean pool."""
        return not self.read(case, contents).right and self.clean_is_right(case, contents)

    def right_alone(self, row: Row) -> bool:
        """Whether a row of the base case is right in a batch of its own."""
        alone = replace(self.case, rows=(replace(row, parent=None, shared_blocks=0),))
        return self.read(alone, self.contents).right

    def _lse_unit(self) -> float:
        return math.log(2) if self.capabilities.lse_base == "2" else 1.0

    def _compare(self, scene: Scene, output: Output) -> list[Wrong]:
        wrong = []
        for row, rows in rows_of(scene.case):
            if row.context_len == 0 and self.capabilities.empty_rows != "zeros":
                continue
            expected = self._expected(scene, row)
            comparison = compare(output.out[rows], expected)
            if not comparison.passed:
                wrong.append(Wrong(row, "out", comparison, output.out[rows]))
            elif output.lse is not None:
                comparison = compare_lse(output.lse[rows], expected)
                if not comparison.passed:
                    wrong.append(Wrong(row, "lse", comparison, output.lse[rows]))
        return wrong

    def _expected(self, scene: Scene, row: Row) -> Expected:
        if row.key in self.expected:
            return self.expected[row.key]
        return expect_row(scene.case, scene.contents[row.key], tf32=False)  # a padding row: zeros
