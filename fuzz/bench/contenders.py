"""Whatever is timed, as one thing: a target or a peer that turns a set of inputs into a call without arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fuzz.bench.cases import AnyCase, Case, StoreCase
from fuzz.bench.inputs import Inputs, StoreInputs
from fuzz.bench.peers import PEERS_BY_NAME, Maker, Peer
from paged_ref.layouts import Layout, pack_keys, pack_values
from properties.attention.capabilities import AttentionCapabilities
from properties.attention.coverage import offered
from properties.attention.execute import check_output
from properties.attention.target import AttentionTarget, Batch, Output, Pool
from properties.blame import last_lines, passes, said
from properties.contract import AdapterError, UsageError
from properties.targets import Target, load


@dataclass(frozen=True)
class ReadScene:
    """One set of a read, for peers (inputs) and for targets (batch)."""

    case: Case
    inputs: Inputs
    batch: Batch


@dataclass(frozen=True)
class StoreScene:
    """One set of a store."""

    case: StoreCase
    inputs: StoreInputs


Scene = ReadScene | StoreScene


@dataclass(frozen=True)
class Prepared:
    """A call that repeats. plain: the adapter's own conversions are in it. pool: where a store writes."""

    call: Callable[[], object]
    plain: bool
    pool: Pool


class Contender(Protocol):
    """What the runner needs of a target or a peer."""

    name: str
    refusals: tuple[type[BaseException], ...]
    tf32: bool

    def why_not(self, case: AnyCase) -> str | None: ...
    def undeclared(self, case: AnyCase) -> str | None: ...
    def open(self) -> None: ...
    def prepare(self, scene: Scene) -> Prepared: ...
    def output(self, result: object, scene: ReadScene) -> torch.Tensor: ...


def make_scene(case: Case, inputs: Inputs) -> ReadScene:
    """The neutral batch of a set of inputs; table entries behind the last block are 0."""
    counts = [-(-length // case.page) for length in case.lengths()]
    rows = inputs.table.tolist()
    batch = Batch(
        q=inputs.q,
        query_lens=(case.query,) * case.batch,
        context_lens=tuple(case.lengths()),
        block_tables=tuple(tuple(row[:count]) for row, count in zip(rows, counts, strict=True)),
        block_size=case.page,
        num_kv_heads=case.num_kv_heads,
        scale=inputs.scale,
        window=None,
        num_splits=None,
        want_lse=False,
        padding=(0,) * inputs.table.shape[1],
    )
    return ReadScene(case, inputs, batch)


class TargetContender:
    """An attention target. Uses its `prepare_*` methods where it has them (see `AttentionTarget`)."""

    def __init__(self, name: str, adapter: AttentionTarget) -> None:
        self.name, self.adapter = name, adapter
        self.capabilities = adapter.capabilities
        self.refusals = adapter.capabilities.refusals
        self.tf32 = adapter.capabilities.tf32

    def why_not(self, case: AnyCase) -> str | None:
        """What rules the case out before anything is called."""
        if case.kind not in offered(self.adapter):
            return f"it has no {case.kind}"
        return None if case.dtype in self.capabilities.dtypes else f"it does not declare {case.dtype}"

    def undeclared(self, case: AnyCase) -> str | None:
        """What of the shape lies outside the declaration. It is tried all the same: declared lists are what cases are
        drawn from, and often small."""
        if self.capabilities.real_shapes:
            return None
        sizes = [
            ("block size", case.page, self.capabilities.block_sizes),
            ("KV heads", case.num_kv_heads, self.capabilities.kv_heads),
            ("head size", case.head_dim, self.capabilities.head_sizes),
        ]
        if isinstance(case, Case):
            sizes.append(("query heads per KV head", case.num_heads // case.num_kv_heads, self.capabilities.ratios))
        outside = [f"{what} {value}" for what, value, declared in sizes if value not in declared]
        return ", ".join(outside) or None

    def open(self) -> None:
        """A fresh start, as before each case of a campaign."""
        reset = getattr(self.adapter, "open", None)
        if reset is not None:
            reset()

    def prepare(self, scene: Scene) -> Prepared:
        """The target's own prepared call, or its plain one."""
        inputs, kind = scene.inputs, scene.case.kind
        pool = self._pool(kind, inputs.k_cache, inputs.v_cache)
        if isinstance(scene, ReadScene):
            arguments: tuple[Any, ...] = (pool, scene.batch)
        else:
            arguments = (pool, scene.inputs.keys, scene.inputs.values, scene.inputs.slots)
        prepare = getattr(self.adapter, f"prepare_{kind}", None)
        if prepare is None:
            plain = getattr(self.adapter, kind)
            return Prepared(lambda: plain(*arguments), True, pool)
        call = prepare(*arguments)
        if not callable(call):
            raise AdapterError(
                f"{self.name}: prepare_{kind} returned {type(call).__name__}", "return a call that takes no arguments"
            )
        return Prepared(call, False, pool)

    def output(self, result: object, scene: ReadScene) -> torch.Tensor:
        """[T, H, D]. Raises AdapterError for anything else."""
        output = Output(result) if isinstance(result, torch.Tensor) else result
        return check_output(self.adapter, output, scene.batch.q).out.detach()

    def _pool(self, kind: str, k_cache: torch.Tensor, v_cache: torch.Tensor) -> Pool:
        """The caches in a layout of the target's; in flash layout they are no copies."""
        layouts = self.capabilities.layouts_of_store if kind == "store" else self.capabilities.layouts
        if "flash" in layouts:
            return Pool(k_cache, v_cache, Layout.FLASH)
        layout = Layout(layouts[0])
        return Pool(pack_keys(k_cache, layout), pack_values(v_cache, layout), layout)


class PeerContender:
    """A peer: reads only."""

    refusals: tuple[type[BaseException], ...] = (ValueError, NotImplementedError)
    tf32 = False

    def __init__(self, name: str, peer: Peer, make: Maker) -> None:
        self.name, self.peer, self.make = name, peer, make

    def why_not(self, case: AnyCase) -> str | None:
        """What its build lacks."""
        return self.peer.why_not(case) if isinstance(case, Case) else "only its reads are known here"

    def undeclared(self, case: AnyCase) -> str | None:
        """A peer declares nothing but that."""
        return None

    def open(self) -> None:
        """Nothing is kept between cases."""

    def prepare(self, scene: Scene) -> Prepared:
        """The peer's call."""
        assert isinstance(scene, ReadScene)
        pool = Pool(scene.inputs.k_cache, scene.inputs.v_cache, Layout.FLASH)
        return Prepared(self.make(scene.case, scene.inputs), False, pool)

    def output(self, result: object, scene: ReadScene) -> torch.Tensor:
        """[T, H, D]."""
        if not isinstance(result, torch.Tensor) or result.shape != scene.batch.q.shape:
            raise AdapterError(f"{self.name} returned no [T, H, D] tensor", "its version is not the one asked for")
        return result


def make_contender(name: str, device: str) -> Contender:
    """The target or peer of that name, ready. Raises UsageError, in one line, for what cannot be timed here."""
    if name in PEERS_BY_NAME:
        return _peer(name, device)
    target = _loaded(name)
    if target.level != "attention":
        raise UsageError(
            f"target {name} is of level {target.level}: bench times attention targets and the peers {', '.join(PEERS_BY_NAME)}"
        )
    adapter = _made(target)
    if device not in adapter.capabilities.devices:
        raise UsageError(f"target {name} runs on {', '.join(adapter.capabilities.devices)}, not on {device}")
    if device == "cpu" and getattr(adapter, "interpreted", False):
        raise UsageError(
            f"target {name} is interpreted on a CPU: a time would mean nothing. `pagefault run` checks it here"
        )
    if not offered(adapter) & {"decode", "prefill", "store"}:
        raise UsageError(f"target {name} offers neither decode nor prefill nor store: there is nothing to time")
    return TargetContender(name, adapter)


def _loaded(name: str) -> Target:
    try:
        return load(name)
    except UsageError:
        raise
    except BaseException as error:
        passes(error)
        raise UsageError(f"target {name}: importing it raised {said(error)} ({last_lines(error)})") from error


def _made(target: Target) -> AttentionTarget:
    try:
        adapter: AttentionTarget = target.make()
        if not isinstance(adapter.capabilities, AttentionCapabilities):
            raise UsageError(f"target {target.name}: its capabilities are no AttentionCapabilities")
    except UsageError:
        raise
    except BaseException as error:
        passes(error)
        what = f"{said(error)} ({last_lines(error)})"
        raise UsageError(f"verdict ADAPTER for {target.name}: making the adapter raised {what}") from error
    return adapter


def _peer(name: str, device: str) -> Contender:
    peer = PEERS_BY_NAME[name]
    if device == "cpu":
        raise UsageError(f"peer {name} runs on CUDA only: give --device cuda on a machine with a GPU")
    try:
        return PeerContender(name, peer, peer.load())
    except Exception as error:  # an import, a library that does not load: whatever it says, this is how to get it
        reason = " ".join(str(error).split())[:160]
        raise UsageError(f"peer {name} cannot be loaded ({reason}). How to get it: {peer.how_to_get}") from error
