"""Hypothesis strategies for attention cases: the generator of `generate`, drawing from Hypothesis."""

from hypothesis import strategies as st

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.cases import AttentionCase, AttentionSetting
from properties.attention.generate import AttentionMaker


@st.composite
def cases(draw: st.DrawFn, capabilities: AttentionCapabilities, operations: frozenset[str]) -> AttentionCase:
    """Cases of any of the operations that the target accepts."""

    def below(n: int) -> int:
        return draw(st.integers(0, n - 1))

    maker = AttentionMaker(below, AttentionSetting(), capabilities, operations)
    return maker.next(None)
