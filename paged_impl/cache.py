"""The paged KV cache: block manager, pools of every layer and a backend in one object. What a user imports.

    cache = PagedKVCache(num_layers=2, num_kv_heads=4, head_dim=64, num_blocks=512, dtype=torch.bfloat16, device="cuda")
    cache.admit("a", prompt)                    # blocks for a prompt; its cached prefix is found
    step = cache.plan(["a"])                    # what is left to compute, as index tensors
    for layer in range(2):                      # q, k, v of the step's tokens
        cache.write(layer, k, v, step)
        out = cache.attend(layer, q, step)
    cache.commit(step)                          # computed: full blocks can be found by others from now on
    cache.append("a", [token])                  # and the next step

Copies that sharing makes due (copy on write, swapping) are performed within the call that makes them due: K and V of every
layer, in order, before anything is written. Every call does all of its work, or raises and changes nothing.

Letters: T query tokens of a step, H query heads, G KV heads, D head dim, L layers, B blocks, P block size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paged_impl.arguments import is_below, require_between, require_integer
from paged_impl.backends import Backend, PoolShape, make_backend
from paged_impl.block_manager import BlockManager, Copy
from paged_impl.prefix_cache import HashFn, Salt
from paged_impl.step import NO_BLOCK, Located, Name, Row, Step, build, independent

_VERSIONS = itertools.count()
"""One for all caches, so that a step of another cache is told apart."""
MOST_SCALE = 1e30
"""Scores must stay finite in float32."""


class PagedKVCache:
    """KV of many sequences in blocks of `block_size` tokens; sequences go by names that the caller chooses.

    `pools` is `[2, L, B, P, G, D]`, keys first; it is never cleared, and nothing that a sequence does not own is ever used.
    `host_pools` is the swap space. `window`: attention sees the last `window` tokens, the query's own included.
    `backend`: "auto", a name from `paged_impl.backends`, or a `Backend`. `manager` answers questions (`can_append`,
    `num_free`, `table`); changes go through the cache. `on_copies` is told of copies that were performed.

    Raises ValueError for a size that is too small, or that the backend cannot serve.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_host_blocks: int = 0,
        window: int | None = None,
        enable_prefix_cache: bool = True,
        hash_fn: HashFn | None = None,
        backend: str | Backend = "auto",
    ) -> None:
        for name, value in (
            ("num_layers", num_layers), ("num_kv_heads", num_kv_heads), ("head_dim", head_dim),
            ("num_blocks", num_blocks), ("block_size", block_size),
        ):  # fmt: skip
            require_between(name, value, 1)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype={dtype!r}: KV is floating point, give torch.float16 for example")
        if not isinstance(backend, str | Backend):
            raise ValueError(f"backend={backend!r}: give a name, or a Backend of your own")
        place = _place(device)
        self.shape = PoolShape(num_layers, num_blocks, block_size, num_kv_heads, head_dim, dtype, place)
        self.backend = make_backend(backend, place) if isinstance(backend, str) else backend
        self.backend.check(self.shape)
        self.backend.check_values = False  # tables and slots of our own making; reading them would wait for the device
        self.pools = _pools(self.shape, num_blocks)  # before the manager, which notes something of every block
        self.manager = BlockManager(
            num_blocks,
            block_size,
            num_host_blocks=num_host_blocks,
            enable_prefix_cache=enable_prefix_cache,
            window=window,
            hash_fn=hash_fn,
        )
        self.window = window
        self.host_pools = _pools(
            replace(self.shape, device=torch.device("cpu")), num_host_blocks, pin=place.type == "cuda"
        )
        self.on_copies: Callable[[Sequence[Copy]], None] | None = None
        self._version = next(_VERSIONS)

    # ---- the life of a sequence

    def admit(self, name: Name, tokens: Sequence[int], salt: Salt = None) -> int:
        """Give a new sequence blocks for all its tokens; returns how many leading tokens are cached, and need no computing.

        Raises OutOfBlocks, or ValueError for a name in use or an empty prompt.
        """
        cached = self.manager.allocate(name, tokens, salt)
        self._changed()
        return cached

    def append(self, name: Name, tokens: Sequence[int]) -> None:
        """Room for more tokens at the end. A shared tail block is copied first. Raises OutOfBlocks, ValueError."""
        self.manager.append(name, tokens)
        self._changed()

    def fork(self, parent: Name, child: Name) -> None:
        """`child` continues from everything `parent` has computed; they share all blocks until one of the two writes."""
        self.manager.fork(parent, child)
        self._changed()

    def truncate(self, name: Name, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens (drafts rolled back)."""
        self.manager.truncate(name, num_tokens)
        self._changed()

    def free(self, name: Name) -> None:
        """End a sequence. Its full blocks stay findable until they are evicted."""
        self.manager.free(name)
        self._changed()

    def preempt(self, name: Name) -> list[int]:
        """Free a sequence that will come back; returns its tokens, with which `admit` brings it back (recomputed)."""
        tokens = self.manager.tokens(name)
        self.free(name)
        return tokens

    def swap_out(self, name: Name) -> None:
        """Move a sequence to host memory. Raises OutOfBlocks for the host space."""
        self.manager.swap_out(name)
        self._changed()

    def swap_in(self, name: Name) -> None:
        """Bring a sequence back from host memory. Raises OutOfBlocks."""
        self.manager.swap_in(name)
        self._changed()

    # ---- a step

    def plan(self, rows: Sequence[Name | Row], *, pad_to: int = 0) -> Step:
        """The next positions to compute: all that are left of a named sequence, or those of a `Row` (a chunk).

        `pad_to` adds tokens that belong to no row (slot -1) up to that number, for fixed batch shapes. The step holds until a
        table changes. Raises ValueError for a row that does not start where the sequence's computed tokens end.
        """
        return self._build([self._row_to_write(row) for row in _listed(rows)], pad_to, writes=True)

    def plan_query(self, rows: Sequence[Name | Row], *, pad_to: int = 0) -> Step:
        """A step that reads positions computed before, and writes nothing: the last one of a named sequence, or a `Row`."""
        return self._build([self._row_to_read(row) for row in _listed(rows)], pad_to, writes=False)

    def write(self, layer: int, key: Tensor, value: Tensor, step: Step) -> None:
        """Store key and value `[T + padding, G, D]` of the step's tokens in one layer."""
        self._check_step(layer, step)
        if not step.writes:
            raise ValueError("this step comes from plan_query(), which reads computed positions: use plan() to write")
        expected = (step.num_tokens + step.num_padding, self.shape.num_kv_heads, self.shape.head_dim)
        self._check_tensor("key", key, expected)
        self._check_tensor("value", value, expected)
        k_cache, v_cache = self.layer(layer)
        self.backend.store(key, value, k_cache, v_cache, step.slot_mapping)
        step.layers_written.add(layer)

    def attend(self, layer: int, query: Tensor, step: Step, *, scale: float | None = None) -> Tensor:
        """Attention of query `[T + padding, H, D]` in one layer, causal over each row's context: `[T + padding, H, D]`.

        `scale` is `D ** -0.5` unless given. Padding gives zeros. Modifies nothing. A row's tokens see themselves: write them
        before, with this step or another one.
        """
        self._check_step(layer, step)
        num_heads = query.shape[1] if isinstance(query, Tensor) and query.dim() == 3 else 0
        if num_heads < 1 or num_heads % self.shape.num_kv_heads:
            raise ValueError(
                f"query.shape={_shape(query)}: expected [tokens, heads, head dim] with a multiple of the "
                f"{self.shape.num_kv_heads} KV heads"
            )
        self._check_tensor("query", query, (step.num_tokens + step.num_padding, num_heads, self.shape.head_dim))
        scale = self.shape.head_dim**-0.5 if scale is None else scale
        if not is_below(scale, MOST_SCALE) or not scale > 0:
            raise ValueError(f"scale={scale!r}: expected a positive number below {MOST_SCALE:g}")
        out = self._attend(self.layer(layer), query[: step.num_tokens], step, scale)
        return out if not step.num_padding else torch.cat([out, out.new_zeros(step.num_padding, *out.shape[1:])])

    def commit(self, step: Step) -> None:
        """The step's KV is written in every layer: publish the blocks that became full, slide the window."""
        self._check_step(0, step)
        missing = sorted(set(range(self.shape.num_layers)) - step.layers_written)
        if step.writes and step.num_tokens and missing:
            raise ValueError(
                f"layers {missing} of this step are not written: their KV would be found, and is not there"
            )
        for row in step.rows if step.writes else ():
            self.manager.computed(row.name, row.stop)
        self._changed()

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, `[B, P, G, D]` each: views of the pools."""
        self._check_layer(layer)
        return self.pools[0, layer], self.pools[1, layer]

    # ---- parts

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        if not step.num_tokens:
            return torch.zeros_like(query)
        sizes = {"scale": scale, "window": self.window, "max_context_len": step.max_context_len}
        if step.max_query_len == 1 and step.num_tokens == len(step.rows):
            return self.backend.decode(query, *caches, step.block_table, step.context_lens, **sizes)  # type: ignore[arg-type]
        return self.backend.prefill(
            query, *caches, step.block_table, step.cu_seqlens_q, step.context_lens,
            max_query_len=step.max_query_len, **sizes,  # type: ignore[arg-type]
        )  # fmt: skip

    def _row_to_write(self, row: Name | Row) -> Row:
        name = row.name if isinstance(row, Row) else row
        computed, length = self.manager.num_computed(name), self.manager.num_tokens(name)
        if not isinstance(row, Row):
            row = Row(name, computed, length)
        _check_bounds(row)
        if row.start != computed:
            raise ValueError(
                f"row [{row.start}, {row.stop}) of {name!r}: {computed} tokens are computed, so the next row starts there. "
                "What is computed may be shared, and is not written again; plan_query() reads it"
            )
        if not row.start < row.stop <= length:
            raise ValueError(
                f"row [{row.start}, {row.stop}) of {name!r} is empty or ends behind its {length} tokens: append first"
            )
        return row

    def _row_to_read(self, row: Name | Row) -> Row:
        name = row.name if isinstance(row, Row) else row
        computed = self.manager.num_computed(name)
        if not isinstance(row, Row):
            row = Row(name, computed - 1, computed)
        _check_bounds(row)
        if not 0 <= row.start < row.stop <= computed:
            raise ValueError(
                f"row [{row.start}, {row.stop}) of {name!r} does not lie in its {computed} computed tokens"
            )
        first = 0 if self.window is None else max(0, row.start - self.window + 1)
        if NO_BLOCK in self.manager.table(name)[first // self.shape.block_size :]:
            raise ValueError(
                f"row [{row.start}, {row.stop}) of {name!r} reads position {first}, which the window has released"
            )
        return row

    def _build(self, rows: Sequence[Row], pad_to: int, *, writes: bool) -> Step:
        require_between("pad_to", pad_to, 0)
        names = [row.name for row in rows]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"sequence {twice!r} has two rows in one step: give it one")
        located = []
        for row in rows:
            if self.manager.is_swapped_out(row.name):
                raise ValueError(f"sequence {row.name!r} is swapped out: call swap_in first")
            tokens = self.manager.tokens(row.name, row.start, row.stop)
            located.append(Located(row, tokens, self.manager.table(row.name)))
        num_padding = max(0, pad_to - sum(row.stop - row.start for row in rows))
        return build(
            located, self.shape.block_size, num_padding, writes=writes, version=self._version, device=self.shape.device
        )

    def _changed(self) -> None:
        """Tables may have changed: perform the copies that are due, and let steps that were planned before lapse."""
        self._version = next(_VERSIONS)
        copies = self.manager.take_copies()
        if not copies:
            return
        pools = {"device": self.pools, "host": self.host_pools}
        for group in independent(copies):
            source, destination = pools[group[0].src_space], pools[group[0].dst_space]
            src = torch.tensor([copy.src_block for copy in group], device=source.device)
            dst = torch.tensor([copy.dst_block for copy in group], device=destination.device)
            self.backend.copy_blocks(source, destination, src, dst)
        if self.on_copies is not None:
            self.on_copies(copies)

    def _check_layer(self, layer: int) -> None:
        require_integer("layer", layer)
        if not 0 <= layer < self.shape.num_layers:
            raise ValueError(f"layer={layer} is outside 0..{self.shape.num_layers - 1}")

    def _check_step(self, layer: int, step: Step) -> None:
        self._check_layer(layer)
        if not isinstance(step, Step):
            raise ValueError(f"step={step!r}: expected what plan() or plan_query() returned")
        if step.version != self._version:
            raise ValueError(
                "this step was planned before the last change (admit, append, fork, truncate, free, swap, commit), or by "
                "another cache: its slots may belong to others by now. Plan again"
            )

    def _check_tensor(self, name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != expected:
            raise ValueError(f"{name}.shape={_shape(tensor)}: expected {expected} for this step")
        if tensor.dtype != self.shape.dtype:
            raise ValueError(f"{name}.dtype={tensor.dtype}: the cache holds {self.shape.dtype}; convert it first")
        if tensor.device != self.shape.device:
            raise ValueError(f"{name}.device={tensor.device}: the cache is on {self.shape.device}; move it first")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name}.layout={tensor.layout}: expected a dense tensor (torch.strided)")
        if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name}.stride(-1)={tensor.stride(-1)}: the last dimension must be dense (stride 1)")


def _pools(shape: PoolShape, num_blocks: int, *, pin: bool = False) -> Tensor:
    """Memory `[2, L, B, P, G, D]` that holds anything. Raises ValueError where the device has not as much."""
    sizes = (2, shape.num_layers, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    try:
        return torch.empty(sizes, dtype=shape.dtype, device=shape.device, pin_memory=pin)
    except RuntimeError as error:  # torch.OutOfMemoryError among them
        gib = math.prod(sizes) * shape.dtype.itemsize / 2**30
        raise ValueError(
            f"{num_blocks} blocks of {shape.block_size} tokens take {gib:,.1f} GiB on {shape.device}, which cannot be had "
            f"({str(error).splitlines()[0]}): give fewer blocks"
        ) from error


def _place(device: torch.device | str) -> torch.device:
    """The device itself: "cuda" becomes the current one, "cuda:0". Raises ValueError where there is none."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device={device!r}: {reason}. Give cpu, or a device that torch sees here") from error


def _listed(rows: object) -> list[Name | Row]:
    """The rows of a step. Raises ValueError for one name instead of a list."""
    if isinstance(rows, str | bytes | Row) or not isinstance(rows, Iterable):
        raise ValueError(f"rows={rows!r}: expected a list of names or rows, such as [{rows!r}]")
    return list(rows)


def _check_bounds(row: Row) -> None:
    require_integer(f"start of the row of {row.name!r}", row.start)
    require_integer(f"stop of the row of {row.name!r}", row.stop)


def _shape(tensor: object) -> object:
    return tuple(tensor.shape) if isinstance(tensor, Tensor) else f"{type(tensor).__name__} is no tensor"
