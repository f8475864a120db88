"""The compile gate, for every kind of launch the rules choose: no spills, 16-byte copies, shared memory in bounds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
# Bytes a program may use, by compute capability (CUDA programming guide, technical specifications).
SHARED_MEMORY_LIMIT = {80: 166_912, 89: 101_376, 90: 232_448}
REGISTERS_AND_SHARED_MEMORY = 65_536, 233_472  # of one multiprocessor; 1 KB of the latter is taken per program


@pytest.fixture(scope="session")
def gate() -> dict[str, Any]:
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parent.parent)])
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "sm90_gate.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="session")
def everything(gate: dict[str, Any]) -> list[dict[str, Any]]:
    shipped: list[dict[str, Any]] = gate["shipped"]
    return shipped


@pytest.fixture(scope="session")
def compiled(everything: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [kernel for kernel in everything if kernel["capability"] == 90]


def programs_per_multiprocessor(kernel: dict[str, Any]) -> int:
    registers, shared = REGISTERS_AND_SHARED_MEMORY
    per_warp = -(-kernel["num_registers"] // 8) * 8 * 32
    return min(registers // (per_warp * kernel["num_warps"]), shared // (kernel["shared_bytes"] + 1024))


def test_every_kernel_is_compiled(compiled: list[dict[str, Any]]) -> None:
    """Each with everything that may be asked of it."""
    assert {kernel["name"] for kernel in compiled} == {
        "store_kernel",
        "decode_kernel",
        "prefill_kernel",
    }
    for name, asked in (("decode", ("window", "return_lse", "num_splits=1")), ("prefill", ("window", "return_lse"))):
        variants = [kernel["options"] for kernel in compiled if kernel["name"] == f"{name}_kernel"]
        for option in (*asked, ""):
            assert any(option in variant if option else not variant for variant in variants), (name, option)


def label(kernel: dict[str, Any]) -> str:
    return f"{kernel['shape']} ({kernel['options']})"


def test_nothing_is_spilled(everything: list[dict[str, Any]]) -> None:
    """Neither in a loop nor around it, whatever is asked for: the rules choose tiles that the registers hold."""
    for kernel in everything:
        assert kernel["stack_bytes"] == 0, label(kernel)


def test_what_is_spilled_is_seen(gate: dict[str, Any]) -> None:
    """With 104 registers a thread, where 64 x 128 of the output and 64 x 64 scores take 96."""
    assert gate["starved"]["stack_bytes"] > 0


def test_two_short_prefill_programs_fit_a_multiprocessor(compiled: list[dict[str, Any]]) -> None:
    short = [kernel for kernel in compiled if kernel["shape"].startswith("prefill short")]

    assert [programs_per_multiprocessor(kernel) for kernel in short] == [2] * 6


def test_shared_memory_is_within_the_limit_of_every_device(everything: list[dict[str, Any]]) -> None:
    assert {kernel["capability"] for kernel in everything} == set(SHARED_MEMORY_LIMIT)
    for kernel in everything:
        assert kernel["shared_bytes"] <= SHARED_MEMORY_LIMIT[kernel["capability"]], label(kernel)


def test_keys_and_values_are_copied_16_bytes_at_a_time(compiled: list[dict[str, Any]]) -> None:
    """Smaller copies are block ids, at most one for each 16-byte copy; none at all means loads that do not overlap."""
    for kernel in compiled:
        if kernel["name"] in ("decode_kernel", "prefill_kernel"):
            wide = sum(size == 16 for size in kernel["copy_bytes"])
            assert wide > 0, label(kernel)
            assert wide >= sum(size < 16 for size in kernel["copy_bytes"]), label(kernel)


def test_store_loads_16_bytes_at_a_time(compiled: list[dict[str, Any]]) -> None:
    """In the flash layout and in the packed one."""
    stores = [kernel for kernel in compiled if kernel["name"] == "store_kernel"]

    assert [kernel["vector_loads"] > 0 for kernel in stores] == [True] * 3


def test_nothing_is_loaded_in_single_16_bit_numbers(compiled: list[dict[str, Any]]) -> None:
    """What becomes of keys, values or queries of which the compiler does not know how they are aligned."""
    for kernel in compiled:
        assert kernel["narrow_loads"] == 0, label(kernel)


def test_a_piece_is_written_before_it_is_counted(compiled: list[dict[str, Any]]) -> None:
    """All threads store, then meet, then one counts with release and acquire: what the interpreter, which runs programs one
    after the other, cannot show."""
    for kernel in compiled:
        if kernel["name"] != "decode_kernel":
            continue
        if "num_splits=1" in kernel["options"]:
            assert kernel["before_atomic"] == [], f"{label(kernel)}: one piece needs no counter"
            continue
        assert kernel["before_atomic"][-3:] == ["st.global", "bar.sync", "atom.global.gpu.acq_rel"], label(kernel)


def test_decode_programs_fill_a_multiprocessor_exactly(compiled: list[dict[str, Any]]) -> None:
    """A wave of twice (four times) as many programs as multiprocessors is spread evenly only where no more fit."""
    expected = {
        "one wave": 2,
        "one page a tile": 2,
        "odd page": 2,
        "four small programs": 4,
        "multi-query": 2,
        "wide head": 2,
    }
    for name, programs in expected.items():
        kernels = [kernel for kernel in compiled if kernel["shape"] == f"decode {name}"]
        assert kernels
        for kernel in kernels:
            assert programs_per_multiprocessor(kernel) == programs, label(kernel)


def test_products_run_on_the_tensor_cores(compiled: list[dict[str, Any]]) -> None:
    for kernel in compiled:
        if kernel["name"] in ("decode_kernel", "prefill_kernel"):
            exact = "float32" in label(kernel)
            assert (kernel["num_mma"] + kernel["num_wgmma"] == 0) == exact, label(kernel)
            if kernel["name"] == "prefill_kernel" and not exact:
                assert kernel["num_wgmma"] > 0, label(kernel)
