"""Reads (READ): attention through block tables."""

import pytest

from properties.attention.budget import on_device
from properties.attention.named import BLOCK_SIZES, SHAPES, named_case
from properties.chapter import check, results_of
from properties.plugin import Session


def test_read(contract: Session, clause_id: str, target_name: str) -> None:
    check(contract, clause_id, target_name)


def test_decode_cases_are_telling(contract: Session, attention_name: str) -> None:
    """Half of the decodes have a sequence of three or more permuted blocks, a quarter two or more partitions."""
    results = results_of(contract, attention_name)
    marks, wanted = results.tally.marks, results.marks
    shares = {
        "decode with 3 or more permuted blocks": 1 / 2,
        "decode with 2 or more partitions": 1 / 4,
    }
    few = [
        f"{mark}: {marks[mark]} of {marks['decode']}"
        for mark, share in shares.items()
        if mark in wanted and marks[mark] < share * marks["decode"]
    ]
    assert not few, f"{attention_name}: too few telling cases: {'; '.join(few)}"
    if contract.profile_name != "pagefault-dev" and "decode" in wanted:
        assert marks["decode"] >= 1000, f"{attention_name}: only {marks['decode']} decodes were judged"


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("model", SHAPES)
def test_shapes_of_real_models(contract: Session, attention_name: str, model: str, block_size: int) -> None:
    """A decode in the shape of each model is right."""
    results_of(contract, attention_name)  # skips where it cannot run here
    if contract.device == "cuda":
        shapes = contract.shapes(attention_name)
        if not shapes:
            pytest.skip(f"{attention_name} does not declare real_shapes")
        wrong = shapes.get(f"{model}, blocks of {block_size}", "not judged: the process had died before")
        assert wrong is None, wrong
        return
    from properties.attention.judge_read import judge_read  # needs torch

    target = on_device(contract.targets[attention_name], contract.device).make()
    if not target.capabilities.real_shapes:
        pytest.skip(f"{attention_name} does not declare real_shapes")
    judge_read(target, named_case(model, block_size), contract.device).raise_if_broken()
