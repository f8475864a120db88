"""Runs a bench: case after case, one contender after the other on the same inputs; right answers are timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import torch

from fuzz.bench import timing
from fuzz.bench.cases import AnyCase, Case
from fuzz.bench.check import Check, ReadCheck, make_check
from fuzz.bench.contenders import Contender, Prepared, Scene, StoreScene, make_scene
from fuzz.bench.inputs import DTYPES, checksums, make_inputs, make_store_inputs
from fuzz.bench.memory import free_bytes, sets_for
from fuzz.bench.result import Ceilings, How, Row, State, with_ratios
from properties.attention.guarding import guard
from properties.blame import last_lines, passes, said
from properties.contract import AdapterError, UsageError

Tell = Callable[[str], None]


def make_scenes(case: AnyCase, device: str) -> list[Scene]:
    """The sets of a case, each with other numbers."""
    seeds = range(sets_for(case, device))
    if isinstance(case, Case):
        return [make_scene(case, make_inputs(case, seed, device)) for seed in seeds]
    return [StoreScene(case, make_store_inputs(case, seed, device)) for seed in seeds]


def measure_ceilings(cases: Sequence[AnyCase], device: str) -> Ceilings:
    """What the kinds of these cases are held against."""
    kinds = {case.kind for case in cases}
    most = min(4 << 30 if device != "cpu" else 512 << 20, free_bytes(device) // 4)
    dtype = DTYPES[cases[0].dtype]
    size = 8192 if device != "cpu" else 512
    return Ceilings(
        read_tb_s=timing.read_ceiling_tb_s(most, device) if "decode" in kinds else None,
        copy_tb_s=timing.copy_tb_s(most // 2, device) if "store" in kinds else None,
        product_tflops=timing.product_tflops(dtype, size, device) if "prefill" in kinds else None,
    )


def run_case(case: AnyCase, contenders: Sequence[Contender], device: str, ceilings: Ceilings, tell: Tell) -> list[Row]:
    """One row for each contender; ratios are to the first. Raises UsageError where the adapter of the first is at fault."""
    sets = _Sets(case, device)
    rows: list[Row] = []
    for contender in contenders:
        tell(f"{case.kind} {case.text}: {contender.name}")
        row = _measure(contender, sets, under_test=contender is contenders[0])
        rows.append(_with_rate(row, case, ceilings))
        if device != "cpu":
            if gpu_is_lost(rows):
                break
            torch.cuda.empty_cache()
        changed = sets.laid_again()
        if changed and rows[-1].state in ("timed", "wrong"):
            why = f"it changes its inputs ({', '.join(changed)}): a call modifies nothing but its result"
            rows[-1] = msgspec.structs.replace(row, state="wrong", us=None, how=None, why=why)
    return with_ratios(rows, contenders[0].name)


class _Sets:
    """The sets of a case and their check, which contender after contender uses."""

    def __init__(self, case: AnyCase, device: str) -> None:
        self.case, self.device = case, device
        self.flush = timing.flush_buffer() if device == "cpu" else None
        self._lay()

    def _lay(self) -> None:
        self.scenes = make_scenes(self.case, self.device)
        self.check = make_check(self.scenes[0])
        self._sums = [checksums(scene.inputs) for scene in self.scenes]

    def laid_again(self) -> list[str]:
        """Names of the inputs that a contender has changed; if there are any, everything is made anew for the next one."""
        now = [checksums(scene.inputs) for scene in self.scenes]
        pairs = list(zip(self._sums, now, strict=True))
        changed = [name for name in self._sums[0] if any(old[name] != new[name] for old, new in pairs)]
        if changed:
            del self.scenes, self.check  # both at once may not fit
            self._lay()
        return changed


def gpu_is_lost(rows: Sequence[Row]) -> bool:
    """Whether the last row left a GPU that answers no call any more (an illegal access ends the process's use of it)."""
    if not rows or rows[-1].state != "failed":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _measure(contender: Contender, sets: _Sets, *, under_test: bool) -> Row:
    case, scenes, check = sets.case, sets.scenes, sets.check

    def row(state: State, **fields: Any) -> Row:
        return Row(case=case.text, kind=case.kind, dtype=case.dtype, target=contender.name, state=state, **fields)

    reason = contender.why_not(case)
    if reason is not None:
        return row("refused", why=reason)
    outside = contender.undeclared(case)
    hint = f" ({outside} lies outside its declaration)" if outside else ""
    try:
        contender.open()
        prepared = [contender.prepare(scene) for scene in scenes]
        checked = check.verdict(contender, prepared[0])
        wrong = checked.wrong or check.of_another_set(contender, prepared[-1], scenes[-1])  # type: ignore[arg-type]
        if wrong is not None:
            return row("wrong", error=_finite(checked.error), why=wrong + hint, plain=prepared[0].plain)
        us, how, wrong = _time(contender, prepared, check, sets.device, case.kind == "prefill", sets.flush)
        wrong = wrong or check.repeated(contender, prepared[0])
    except AdapterError as error:
        verdict = f"verdict ADAPTER for {contender.name}: {error}"
        if under_test:
            raise UsageError(verdict) from error
        return row("failed", why=verdict)
    except BaseException as error:  # SystemExit too: a target that ends the process must not pass for a clean bench
        passes(error)
        if isinstance(error, (*contender.refusals, torch.OutOfMemoryError)):
            return row("refused", why=_one_line(error) + hint)
        state: State = "refused" if outside else "failed"
        return row(state, why=f"{_one_line(error)} ({last_lines(error)}){hint}")
    if wrong is not None:
        return row("wrong", error=_finite(checked.error), why=wrong + hint, plain=prepared[0].plain)
    return row("timed", us=us, how=how, error=checked.error, plain=prepared[0].plain)


def _time(
    contender: Contender,
    prepared: Sequence[Prepared],
    check: Check,
    device: str,
    long: bool,
    flush: torch.Tensor | None,
) -> tuple[float, How, str | None]:
    """(microseconds, how, what is wrong with a replayed answer)."""
    calls = [each.call for each in prepared]
    if device == "cpu":
        return timing.clock_us(calls, flush=flush), "clock", None
    recording = _record(calls, 2 if long else 8)
    if recording is None:
        return timing.events_us(calls, 10 if long else timing.EVENT_CALLS), "events", None
    result: Any = recording.result if isinstance(check, ReadCheck) else prepared[0]
    wrong = check.replayed(contender, result, recording.graph.replay)
    return 0.0 if wrong else timing.replayed_us(recording, 8 if long else timing.REPLAYS), "graph", wrong


def _record(calls: Sequence[timing.Call], min_calls: int) -> timing.Recording | None:
    """The calls in a CUDA graph, or None where they cannot be captured.

    A call that waits for the device cannot; it is found out before, since a capture that fails leaves torch's allocator and
    random generators in the state of one that goes on.
    """
    with _no_waiting():
        try:
            calls[0]()
        except RuntimeError:
            return None
    with suppress(RuntimeError):
        return timing.record(calls, min_calls)
    return None


@contextmanager
def _no_waiting() -> Any:
    """Inside, torch raises RuntimeError where an operation waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _with_rate(row: Row, case: AnyCase, ceilings: Ceilings) -> Row:
    if row.us is None:
        return row
    if case.kind == "prefill":
        assert isinstance(case, Case)
        rate, ceiling = case.flops / row.us / 1e6, ceilings.product_tflops
        return msgspec.structs.replace(row, tflops=rate, of_ceiling=rate / ceiling if ceiling else None)
    rate, ceiling = case.bytes_moved / row.us / 1e6, ceilings.copy_tb_s if case.kind == "store" else ceilings.read_tb_s
    return msgspec.structs.replace(row, tb_s=rate, of_ceiling=rate / ceiling if ceiling else None)


def is_interpreted(contender: Contender, case: AnyCase, device: str) -> bool:
    """Whether a tiny case of this kind runs Triton kernels in the interpreter."""
    if isinstance(case, Case):
        context = min(case.context, 2)
        tiny: AnyCase = replace(case, batch=1, context=context, query=min(case.query, context), pattern="u")
    else:
        tiny = replace(case, num_tokens=1)
    if contender.why_not(tiny) is not None:
        return False
    scene = make_scenes(tiny, device)[0]
    _try(contender, scene)
    if guard.why_unavailable() is not None:
        return False
    with guard.guarded() as watch:
        _try(contender, scene)
    return watch.num_checks > 0


def _try(contender: Contender, scene: Scene) -> None:
    """A call whose failure does not count: the case itself will show it."""
    try:
        contender.prepare(scene).call()
    except BaseException as error:
        passes(error)


def _finite(error: float) -> float | None:
    """JSON has no NaN."""
    return error if error == error and error not in (float("inf"), -float("inf")) else None  # noqa: PLR0124


def _one_line(error: BaseException) -> str:
    return said(error)
