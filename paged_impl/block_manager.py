"""The block manager: which physical blocks hold the KV of which sequence.

The life of a sequence: `allocate` takes blocks for a prompt (cached ones as far as its prefix is known), the
caller computes and says so with `computed`, `append` reserves slots for more tokens, `free` gives everything
back. A step performs the copies of `take_copies` in order, then writes its KV, then calls `computed`.

Every call does all of its work, or raises and changes nothing.
"""

from array import array
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

from paged_impl.arguments import require_between, require_integer
from paged_impl.block_pool import BlockPool
from paged_impl.errors import OutOfBlocks, UnknownSequence
from paged_impl.prefix_cache import NO_BLOCK, HashFn, PrefixCache, PrefixNode, Salt, salted
from paged_impl.sequence_state import TOKEN_BYTES, SequenceState, Tokens, pack

Name = Hashable
Space = Literal["device", "host"]


class Copy(NamedTuple):
    """Copy one whole block, K and V of every layer. Copies run one after another, never at once."""

    src_block: int
    dst_block: int
    src_space: Space
    dst_space: Space


class BlockManager:
    """Owns `num_blocks` blocks of `block_size` tokens each; sequences go by names that the caller chooses.

    With `window`, the query at position p reads positions (p - window, p] and the first `num_sinks`; blocks
    that no later query can read are released. A hit still needs the whole prefix to be cached.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_host_blocks: int = 0,
        enable_prefix_cache: bool = True,
        window: int | None = None,
        num_sinks: int = 0,
        hash_fn: HashFn | None = None,
    ) -> None:
        require_between("num_blocks", num_blocks, 1)
        require_between("block_size", block_size, 1)
        require_between("num_host_blocks", num_host_blocks, 0)
        require_between("num_sinks", num_sinks, 0)
        if window is not None:
            require_between("window", window, 1)
        elif num_sinks:
            raise ValueError(f"num_sinks={num_sinks} has no effect without a window: set window, or num_sinks=0")
        if hash_fn is not None and not callable(hash_fn):
            raise ValueError(f"hash_fn={hash_fn!r}: it must be a function of bytes, like xxh64_digest")
        if hash_fn is not None and not isinstance(hash_fn(b""), bytes):
            raise ValueError(f"hash_fn returns {hash_fn(b'')!r}: it must turn bytes into bytes, like xxh64_digest")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.window = window
        self.enable_prefix_cache = enable_prefix_cache
        self._num_sink_blocks = -(-num_sinks // block_size)
        self._pool = BlockPool(num_blocks)
        self._host_pool = BlockPool(num_host_blocks)
        self._cache = PrefixCache(num_blocks, hash_fn)
        self._sequences: dict[Name, SequenceState] = {}
        self._copies: list[Copy] = []

    # ---- admission

    def lookup(self, tokens: Tokens, salt: Salt = None) -> int:
        """How many tokens `allocate` would find cached now. Changes nothing, reserves nothing."""
        return (len(self._match(pack(tokens), salt)) - 1) * self.block_size

    def blocks_needed_allocate(self, tokens: Tokens, salt: Salt = None) -> int:
        """By how many blocks `allocate` would lower `num_free`."""
        packed = pack(tokens)
        return self._allocate_needs(packed, self._match(packed, salt))

    def can_allocate(self, tokens: Tokens, salt: Salt = None) -> bool:
        """Whether there are blocks for `allocate` now."""
        return self.blocks_needed_allocate(tokens, salt) <= self._pool.num_free

    def allocate(self, name: Name, tokens: Tokens, salt: Salt = None) -> int:
        """Give a new sequence blocks for all its tokens; returns how many leading tokens are cached already.

        That is a multiple of the block size and leaves at least one token to compute. `salt` keeps prefixes
        apart whose KV differs though their tokens do not: adapter, image, tenant, model version.
        Raises OutOfBlocks, or ValueError for a name in use or an empty prompt.
        """
        self._check_new(name)
        packed = pack(tokens)
        if not packed:
            raise ValueError(f"sequence {name!r} has 0 tokens: a prompt needs at least 1")
        chain = self._match(packed, salt)
        _require(self._allocate_needs(packed, chain), self._pool)
        table = [node.block for node in chain[1:]]
        num_cached = len(table) * self.block_size
        self._hold_all(table)  # before anything is taken, since taking may evict
        self._extend(table, len(packed))
        self._sequences[name] = SequenceState(
            packed, salt, table, chain, num_cached, len(packed), self._num_sink_blocks
        )
        return num_cached

    def computed(self, name: Name, upto: int) -> None:
        """The KV of positions [0, upto) is written: publish the blocks that became full, slide the window.

        The window follows tokens that are computed *and* settled: those of the newest `append` may be drafts,
        and count as settled from the next one on. Less than before changes nothing.
        Raises ValueError if `upto` is more than the sequence has, or the sequence is swapped out.
        """
        seq = self._resident(name)
        require_integer("upto", upto)
        if not 0 <= upto <= len(seq.tokens):
            raise ValueError(f"upto={upto} is outside 0..{len(seq.tokens)}, the tokens of {name!r}: append first")
        if upto > seq.num_computed:
            seq.num_computed = upto
            if self.enable_prefix_cache and upto // self.block_size >= len(seq.chain):
                self._publish(seq)
        if self.window is not None:
            self._slide(seq)

    # ---- growth, sharing, shrinking

    def blocks_needed_append(self, name: Name, num_tokens: int) -> int:
        """By how many blocks `append` of that many would lower `num_free`, a copied tail included."""
        require_between("num_tokens", num_tokens, 0)
        return self._append_needs(self._resident(name), num_tokens)

    def can_append(self, name: Name, num_tokens: int) -> bool:
        """Whether there are blocks for an append of `num_tokens` now."""
        return self.blocks_needed_append(name, num_tokens) <= self._pool.num_free

    def append(self, name: Name, tokens: Tokens) -> None:
        """Reserve slots for more tokens, which the caller then computes. A shared tail block is copied first.

        Raises OutOfBlocks, or ValueError if there is no token or the sequence is swapped out.
        """
        seq = self._resident(name)
        packed = pack(tokens)
        if not packed:
            raise ValueError(f"nothing to append to {name!r}: give at least 1 token")
        _require(self._append_needs(seq, len(packed)), self._pool)
        if len(seq.tokens) % self.block_size:
            self._make_tail_writable(seq)
        seq.num_settled = len(seq.tokens)
        seq.tokens.extend(packed)
        self._extend(seq.table, len(seq.tokens))

    def fork(self, parent: Name, child: Name) -> None:
        """Start `child` as a copy of `parent`. Takes no block: all are shared until one of the two writes.

        Raises ValueError if `child` is live, or `parent` is swapped out or has tokens to compute.
        """
        seq = self._resident(parent)
        self._check_new(child)
        if seq.num_computed < len(seq.tokens):
            num_left = len(seq.tokens) - seq.num_computed
            raise ValueError(f"{parent!r} has {num_left} tokens to compute: call computed() before it is forked")
        self._hold_all(seq.table)
        self._sequences[child] = seq.fork()

    def truncate(self, name: Name, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens (drafts rolled back) and release the blocks behind them.

        Of the dropped part, what this sequence alone held is no longer findable; what others hold is theirs.
        Raises ValueError for a length outside 0..num_tokens(name), or one whose window is released in part.
        """
        seq = self._resident(name)
        require_integer("num_tokens", num_tokens)
        if not 0 <= num_tokens <= len(seq.tokens):
            raise ValueError(f"num_tokens={num_tokens} is outside 0..{len(seq.tokens)}, the tokens of {name!r}")
        if self._num_sink_blocks < seq.num_passed > self._window_start(num_tokens):
            raise ValueError(f"the window has passed {num_tokens} tokens of {name!r}, and released its blocks: free it")
        for block in reversed(seq.table[num_tokens // self.block_size :]):
            if self._pool.ref_counts[block] == 1:
                self._forget(block)
        self._release_all(seq.cut(num_tokens, self.block_size))

    def free(self, name: Name) -> None:
        """End a sequence. Its published blocks stay findable until they are evicted, the last one first."""
        seq = self._sequence(name)
        if seq.host_table is not None:
            self._release_host(seq.host_table)
        else:
            self._release_all(seq.table)
            self._touch_passed(seq)
        del self._sequences[name]

    def clear_cache(self) -> None:
        """Make every cached prefix unfindable (new weights, dropped KV); live sequences publish no more."""
        self._cache.clear()
        self._pool.blank_all()

    # ---- swapping

    def can_swap_out(self, name: Name) -> bool:
        """Whether there are host blocks for `swap_out` now."""
        return len(self._blocks_to_save(self._resident(name))) <= self._host_pool.num_free

    def blocks_needed_swap_in(self, name: Name) -> int:
        """By how many blocks `swap_in` would lower `num_free`."""
        seq, host_table = self._swapped(name)
        return self._blocks_for(len(seq.tokens)) - host_table.count(NO_BLOCK)

    def can_swap_in(self, name: Name) -> bool:
        """Whether there are blocks for `swap_in` now."""
        return self.blocks_needed_swap_in(name) <= self._pool.num_free

    def swap_out(self, name: Name) -> None:
        """Move a sequence to host blocks, as copies. Its published blocks stay findable here until evicted.

        Raises OutOfBlocks for the host space, or ValueError if it is swapped out already.
        """
        seq = self._resident(name)
        saved = self._blocks_to_save(seq)
        _require(len(saved), self._host_pool, "host")
        host_table = [NO_BLOCK] * self._blocks_for(seq.num_computed)
        for i in saved:
            host_table[i] = self._host_pool.take()
            self._copies.append(Copy(seq.table[i], host_table[i], "device", "host"))
        self._release_all(seq.table)
        seq.host_table, seq.table = host_table, []

    def swap_in(self, name: Name) -> None:
        """Bring a sequence back into fresh blocks, as copies; the next `computed` publishes the full ones.

        Raises OutOfBlocks, or ValueError if it is not swapped out.
        """
        seq, host_table = self._swapped(name)
        _require(self.blocks_needed_swap_in(name), self._pool)
        for host_block in host_table:
            block = NO_BLOCK if host_block == NO_BLOCK else self._take()
            seq.table.append(block)
            if block != NO_BLOCK:
                self._copies.append(Copy(host_block, block, "host", "device"))
        self._extend(seq.table, len(seq.tokens))
        self._release_host(host_table)
        seq.chain, seq.host_table = [seq.chain[0]], None

    def take_copies(self) -> list[Copy]:
        """The copies to perform, in this order, before any KV is written. The call drains them."""
        copies, self._copies = self._copies, []
        return copies

    # ---- inspection: changes nothing

    def table(self, name: Name) -> tuple[int, ...]:
        """Logical block -> physical block; -1 where the window has passed; empty while swapped out."""
        return tuple(self._sequence(name).table)

    def new_blocks(self, known: Sequence[tuple[Name, int]]) -> list[list[int]]:
        """For each `(name, n)`: what the table of that sequence has behind its first `n` blocks, without copying those."""
        sequences = self._sequences
        try:
            return [sequences[name].table[first:] for name, first in known]
        except KeyError as error:
            raise UnknownSequence(error.args[0]) from None

    def host_table(self, name: Name) -> tuple[int, ...]:
        """Logical block -> host block of what is computed, -1 as in `table`; empty unless swapped out."""
        return tuple(self._sequence(name).host_table or ())

    def tokens(self, name: Name, start: int = 0, stop: int | None = None) -> list[int]:
        """The tokens of the sequence at positions `[start, stop)`, computed or not; all of them unless told."""
        return self._sequence(name).tokens[start:stop].tolist()

    def num_tokens(self, name: Name) -> int:
        """Tokens of the sequence, computed or not."""
        return len(self._sequence(name).tokens)

    def num_computed(self, name: Name) -> int:
        """Tokens whose KV is written."""
        return self._sequence(name).num_computed

    def is_swapped_out(self, name: Name) -> bool:
        """Whether the sequence is in host memory."""
        return self._sequence(name).host_table is not None

    def ref_count(self, block: int) -> int:
        """How many live sequences hold a device block."""
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block {block} is outside 0..{self.num_blocks - 1}")
        return self._pool.ref_counts[block]

    def free_blocks(self) -> list[int]:
        """The blocks that nobody holds, the next to be taken first; evictable ones are cached as well."""
        return self._pool.free_blocks()

    def cached_blocks(self) -> list[int]:
        """The blocks that some lookup can find, held or free."""
        return self._cache.blocks()

    @property
    def num_copies(self) -> int:
        """How many copies `take_copies` would give now."""
        return len(self._copies)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, evictable ones included."""
        return self._pool.num_free

    @property
    def num_evictable(self) -> int:
        """Free blocks that keep a cached prefix."""
        return self._pool.num_evictable

    @property
    def num_free_host(self) -> int:
        """Host blocks that nobody holds."""
        return self._host_pool.num_free

    # ---- one block

    def _take(self) -> int:
        block = self._pool.take()
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        for orphan in self._cache.forget(block):
            if self._pool.ref_counts[orphan] == 0:
                self._pool.blank(orphan)

    def _release(self, block: int) -> None:
        if self._pool.release(block):
            keep = self._cache.is_last_copy(block)
            if not keep:  # one copy is enough: a free block is the only copy of its prefix
                self._cache.forget(block)
            self._pool.retire(block, evictable=keep)

    def _make_tail_writable(self, seq: SequenceState) -> None:
        block = seq.table[-1]
        if self._pool.ref_counts[block] > 1:
            seq.table[-1] = self._take()
            self._copies.append(Copy(block, seq.table[-1], "device", "device"))
            self._release(block)
        else:  # it may be findable still: cut by this sequence while another held it, which has left
            self._forget(block)

    # ---- many blocks

    def _hold_all(self, blocks: list[int]) -> None:
        for block in blocks:
            if block != NO_BLOCK:
                self._pool.hold(block)

    def _extend(self, table: list[int], num_tokens: int) -> None:
        for _ in range(self._blocks_for(num_tokens) - len(table)):
            table.append(self._take())

    def _release_all(self, blocks: list[int]) -> None:
        for block in reversed(blocks):  # a leaf is released, hence evicted, before its parent
            if block != NO_BLOCK:
                self._release(block)

    def _release_host(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            if block != NO_BLOCK and self._host_pool.release(block):
                self._host_pool.retire(block, evictable=False)

    # ---- prefixes and the window

    def _match(self, packed: "array[int]", salt: Salt) -> list[PrefixNode]:
        """The cached chain of a prompt without its last token, whose logits the caller needs."""
        if not isinstance(salt, str | bytes | int | None):  # others may look equal, cut short, and are not
            raise ValueError(
                f"salt of type {type(salt).__name__}: give a str, bytes, int or None, for example a digest"
            )
        if not self.enable_prefix_cache:
            return [self._cache.root]
        num_tokens = (len(packed) - 1) // self.block_size * self.block_size
        return self._cache.match(packed[:num_tokens].tobytes(), self.block_size * TOKEN_BYTES, salt)

    def _publish(self, seq: SequenceState) -> None:
        first, stop = len(seq.chain) - 1, seq.num_computed // self.block_size
        data = seq.tokens[first * self.block_size : stop * self.block_size].tobytes()
        chunk_bytes = self.block_size * TOKEN_BYTES
        for i, start in zip(range(first, stop), range(0, len(data), chunk_bytes), strict=True):
            chunk = data[start : start + chunk_bytes]
            if i == 0:
                chunk = salted(chunk, seq.salt)
            if seq.table[i] == NO_BLOCK:  # passed by the window, then swapped: others may have kept it cached
                node = self._cache.find(seq.chain[-1], chunk)
            else:
                node = self._cache.publish(seq.chain[-1], chunk, seq.table[i])
            seq.chain.append(node)
            if node.twins and self._pool.ref_counts[node.block] == 0:  # the older copy is one too many
                self._pool.blank(node.block)
                self._cache.forget(node.block)

    def _slide(self, seq: SequenceState) -> None:
        stop = self._window_start(min(seq.num_computed, seq.num_settled))
        for i in range(seq.num_passed, stop):
            self._release(seq.table[i])
            seq.table[i] = NO_BLOCK
        seq.num_passed = max(seq.num_passed, stop)

    def _touch_passed(self, seq: SequenceState) -> None:
        """What the window released is older than its children: put it behind them, leaf before parent."""
        for node in reversed(seq.chain[self._num_sink_blocks + 1 : seq.num_passed + 1]):
            if node.alive:
                self._pool.touch(node.block)

    def _window_start(self, num_tokens: int) -> int:
        """The first logical block that the query at position `num_tokens` can read, sinks apart."""
        return 0 if self.window is None else max(0, num_tokens - self.window + 1) // self.block_size

    # ---- figures and checks

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _allocate_needs(self, packed: "array[int]", chain: list[PrefixNode]) -> int:
        ref_counts = self._pool.ref_counts
        num_held = sum([ref_counts[node.block] > 0 for node in chain[1:]])
        return self._blocks_for(len(packed)) - num_held

    def _append_needs(self, seq: SequenceState, num_new: int) -> int:
        needed = self._blocks_for(len(seq.tokens) + num_new) - len(seq.table)
        writes_tail = num_new > 0 and len(seq.tokens) % self.block_size > 0
        return needed + (writes_tail and self._pool.ref_counts[seq.table[-1]] > 1)

    def _blocks_to_save(self, seq: SequenceState) -> list[int]:
        return [i for i in range(self._blocks_for(seq.num_computed)) if seq.table[i] != NO_BLOCK]

    def _check_new(self, name: Name) -> None:
        try:
            hash(name)
        except TypeError:
            raise _no_name(name) from None
        if name in self._sequences:
            raise ValueError(f"a sequence called {name!r} is live: free it first, or choose another name")

    def _sequence(self, name: Name) -> SequenceState:
        try:
            return self._sequences[name]
        except KeyError:
            raise UnknownSequence(name) from None
        except TypeError:
            raise _no_name(name) from None

    def _resident(self, name: Name) -> SequenceState:
        seq = self._sequence(name)
        if seq.host_table is not None:
            raise ValueError(f"sequence {name!r} is swapped out: call swap_in first")
        return seq

    def _swapped(self, name: Name) -> tuple[SequenceState, list[int]]:
        seq = self._sequence(name)
        if seq.host_table is None:
            raise ValueError(f"sequence {name!r} is not swapped out")
        return seq, seq.host_table


def _require(needed: int, pool: BlockPool, space: Space = "device") -> None:
    if needed > pool.num_free:
        raise OutOfBlocks(needed, pool.num_free, pool.num_evictable, space)


def _no_name(name: object) -> ValueError:
    return ValueError(f"sequence {name!r} cannot be a name: give something hashable, such as a str or an int")
