"""A recorded production workload: one request a line, its prompt as ids of blocks of 512 tokens.

The format is that of the traces of kvcache-ai/Mooncake (`FAST25-release/traces`): `timestamp` (ms), `input_length` and
`output_length` (tokens), `hash_ids`, one for each 512 tokens of the prompt, the last one cut. Equal ids stand for equal blocks
behind equal prefixes, so tokens can be made from ids such that equal ids mean equal tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from properties.contract import UsageError

MOST_OUTPUT = 1 << 20
"""Tokens that a request may generate: below the distance between the numbers that requests' own tokens begin with."""
CHUNK_TOKENS = 512
"""Tokens that one id stands for."""


class Request(msgspec.Struct, frozen=True):
    """One line of the file."""

    input_length: int
    output_length: int
    hash_ids: list[int]
    timestamp: float = 0


def read_requests(path: str, most: int | None = None) -> Iterator[Request]:
    """The requests of a file, in order, checked. Raises `UsageError` that names the line.

    The file is read more than once in a run, so it cannot be a pipe.
    """
    _check_kind(path)
    decoder = msgspec.json.Decoder(Request)
    number = 0
    try:
        with Path(path).open("rb") as lines:
            for line_number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                if most is not None and number >= most:
                    break
                yield _checked(decoder, line, f"{path}, line {line_number}")
                number += 1
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not number:
        raise UsageError(f"{path} has no request: it is JSON Lines with input_length, output_length and hash_ids")


def _check_kind(path: str) -> None:
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"{path} is a folder: give the file of requests in it")
    if not file.exists():
        raise UsageError(f"{path}: no such file (looked for {file.absolute()})")
    if not file.is_file():
        raise UsageError(f"{path} is a pipe or a device, and a trace is read more than once: write it to a file first")
    with file.open("rb") as head:
        kind = _PACKED.get(head.read(4)[:2], "")
    if kind:
        raise UsageError(f"{path} is packed with {kind}: unpack it first")


_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}
"""First two bytes of a packed file -> with what."""


def _checked(decoder: msgspec.json.Decoder[Request], line: bytes, where: str) -> Request:
    try:
        request = decoder.decode(line)
    except RecursionError:
        raise UsageError(
            f"{where}: it is nested too deeply. A line has input_length, output_length and hash_ids"
        ) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: {error}. A line has input_length, output_length and hash_ids") from None
    if request.input_length < 1 or not 0 <= request.output_length < MOST_OUTPUT:
        raise UsageError(
            f"{where}: input_length {request.input_length}, output_length {request.output_length}; give at least 1 and 0, and "
            f"less than {MOST_OUTPUT} to generate"
        )
    expected = -(-request.input_length // CHUNK_TOKENS)
    if len(request.hash_ids) != expected:
        raise UsageError(
            f"{where}: {request.input_length} tokens are {expected} blocks of {CHUNK_TOKENS}, but there are "
            f"{len(request.hash_ids)} hash_ids"
        )
    if request.hash_ids and not 0 <= min(request.hash_ids) <= max(request.hash_ids) < 1 << 40:
        raise UsageError(f"{where}: hash_ids must lie between 0 and 2**40")
    return request


class Chains:
    """Ids with the ids before them: what a block of the pool holds is a whole prefix, whatever a single id says."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}

    def of(self, request: Request) -> list[int]:
        """A number for each id of a request; equal numbers mean an equal id behind equal ids."""
        nodes, node, found = self._nodes, -1, []
        for id in request.hash_ids:
            key = (node, id)
            node = nodes.setdefault(key, len(nodes))
            found.append(node)
        return found


def prompt_tokens(request: Request) -> array[int]:
    """The prompt: token `offset` of block `id` is `512 * id + offset`."""
    tokens = array("q")
    for id in request.hash_ids:
        tokens.extend(range(id * CHUNK_TOKENS, (id + 1) * CHUNK_TOKENS))
    return tokens[: request.input_length]


def expected_hits(requests: Iterator[Request], block_size: int) -> Iterator[int]:
    """Hit tokens of each request in an unlimited cache, counted from the ids alone.

    A hit is a run of full blocks of earlier prompts, requests in order; it leaves at least one token to compute.
    """
    chains, published = Chains(), dict[int, int]()
    for request in requests:
        hit, running = 0, True
        for index, node in enumerate(chains.of(request)):
            length = min(CHUNK_TOKENS, request.input_length - index * CHUNK_TOKENS)
            full = length // block_size * block_size
            known = published.get(node, 0)
            if running:
                hit += min(known, full)
                running = known >= CHUNK_TOKENS == length
            published[node] = max(known, full)
        yield min(hit, (request.input_length - 1) // block_size * block_size)
