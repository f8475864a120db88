import pytest

from properties.targets import Unavailable
from properties.targets.cache_ours import OurTritonCache


@pytest.fixture
def triton_runs() -> None:
    """Skips where Triton's kernels cannot run."""
    try:
        OurTritonCache()
    except Unavailable as reason:
        pytest.skip(str(reason))
