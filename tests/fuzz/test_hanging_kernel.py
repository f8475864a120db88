"""A kernel that hangs is found although its level allows slow calls: no campaign ends as clean while a call does not return."""

from pathlib import Path

from tests.fuzz.helpers import pagefault

TARGET = f"{Path(__file__).with_name('hanging_kernel.py')}:Hangs"


def test_a_limit_that_is_given_counts_for_kernels_too(tmp_path: Path) -> None:
    options = ("--time", "60s", "--fail-fast", "--call-limit", "3s", "--seed", 1, "--out", "o", "--json")
    done = pagefault("run", "-t", TARGET, *options, cwd=tmp_path)
    findings = done.json["targets"][TARGET]["findings"]

    assert done.code == 1, done.err
    assert [finding["property"] for finding in findings] == ["CRASH-2"]
    assert "did not return within 3 s" in findings[0]["message"]
    assert "33 tokens" in findings[0]["message"]


def test_check_target_tells_a_kernel_that_hangs(tmp_path: Path) -> None:
    done = pagefault("check-target", TARGET, "--time", "60s", "--call-limit", "3s", cwd=tmp_path)

    assert done.code == 0, done.err  # the adapter is sound
    assert "CRASH-2: decode: row 0" in done.out
