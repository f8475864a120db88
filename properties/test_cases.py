"""Cases given with `--case`: each must no longer break its clause."""

import pytest

from properties.case import Case
from properties.contract import VIOLATIONS
from properties.minimise import judge
from properties.report import explain
from properties.specs import spec_of
from properties.targets import Unavailable, load


def test_case(case: Case) -> None:
    try:
        make = load(case.target).make
        verdict = judge(spec_of(case.level), make, case.geometry, case.operations)
    except Unavailable as reason:
        pytest.skip(str(reason))

    if verdict.broke(case.property):
        raise VIOLATIONS[case.property](explain(case))
