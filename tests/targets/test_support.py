"""What adapters are built with: a missing or other version is said with the remedy, and imports leave nothing behind."""

import doctest
import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from properties.blocks.operations import Geometry
from properties.contract import AdapterError
from properties.targets import Unavailable, builtin_error, load, support
from properties.targets.support import TableTarget, load_file, module, packages, require, stubs


def test_the_examples_hold():
    outcome = doctest.testmod(support)

    assert outcome.attempted >= 2
    assert outcome.failed == 0


def test_what_is_missing_is_said_with_the_command():
    with pytest.raises(Unavailable, match=r"no-such-thing is not installed: pip install no-such-thing==1"):
        require("no-such-thing", "1", "pip install no-such-thing==1")


def test_another_version_is_said_with_both():
    with pytest.raises(
        Unavailable, match=r"pytest .* is installed, but the adapter is written for 0\.1: pip install x"
    ):
        require("pytest", "0.1", "pip install x")


def test_a_local_build_of_the_version_will_do(monkeypatch):
    class Torch:
        version = "2.13.0+cpu"

    monkeypatch.setattr(support, "distribution", lambda name: Torch)

    require("torch", "2.13.0", "pip install torch")
    with pytest.raises(Unavailable):
        require("torch", "2.13", "pip install torch")


def test_a_file_that_the_distribution_lacks():
    with pytest.raises(Unavailable, match=r"pytest .* has no pytest/nowhere\.py"):
        load_file("pytest", "pytest/nowhere.py")


def test_one_file_runs_without_its_package():
    before = set(sys.modules)

    loaded = load_file("pytest", "_pytest/scope.py")

    assert loaded.Scope.Function.value == "function"
    assert loaded is not sys.modules["_pytest.scope"]
    assert set(sys.modules) == before


def test_a_file_finds_what_it_is_given_only_while_it_runs():
    stand_in = module("_pytest.compat", assert_never=None, marker="mine")
    real = sys.modules["_pytest.compat"]

    load_file("pytest", "_pytest/scope.py", {"_pytest.compat": stand_in})

    assert sys.modules["_pytest.compat"] is real


def test_a_failing_file_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import sys\nraise OSError('no GPU')\n")

    class Installed:
        version = "1"
        locate_file = staticmethod(tmp_path.joinpath)

    monkeypatch.setattr(support, "distribution", lambda name: Installed)
    before = set(sys.modules)

    with pytest.raises(OSError, match="no GPU"):
        load_file("whatever", "broken.py")
    assert set(sys.modules) == before


ENGINE = """
import torch_npu_kernels.deep.ops as ops
from flash_attention_that_is_not_here import varlen, Base, tune
import flash_attention_that_is_not_here.layers

@tune
def plain(x): return x + 1

@tune(blocks=64)
def configured(x): return x + 2

class Kernel(Base):
    grid: "ops.Grid | None" = None

def run(): return varlen(1)
"""


@pytest.fixture(name="engine")
def _engine(tmp_path, monkeypatch):
    package = tmp_path / "engine_on_stubs"
    package.mkdir()
    (package / "__init__.py").write_text("from engine_on_stubs import core\n")
    (package / "core.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "engine_on_stubs"


NAMES = ("torch_npu_kernels.deep.ops", "flash_attention_that_is_not_here")


def test_without_stubs_the_import_fails(engine):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(engine)


def test_stubs_carry_an_import_and_are_gone_afterwards(engine):
    before = set(sys.modules)

    with stubs(*NAMES, "flash_attention_that_is_not_here.layers", forget=[engine]):
        core = importlib.import_module(engine).core

    assert core.plain(1) == 2
    assert core.configured(1) == 3
    assert core.Kernel.__bases__ == (object,)
    assert set(sys.modules) == before


def test_no_result_ever_comes_from_a_stub(engine):
    with stubs(*NAMES, "flash_attention_that_is_not_here.layers", forget=[engine]):
        core = importlib.import_module(engine).core

    with pytest.raises(AdapterError, match=r"flash_attention_that_is_not_here\.varlen is a stub"):
        core.run()


def test_nothing_is_computed_with_a_stub_afterwards():
    with stubs("flash_attention_that_is_not_here"):
        from flash_attention_that_is_not_here import SIZE

        assert not list(SIZE * 2 + 1)
    for use in (bool, len, int, iter, lambda size: size + 1, lambda size: size < 3, lambda size: size[0]):
        with pytest.raises(AdapterError, match=r"SIZE is a stub"):
            use(SIZE)


def test_modules_below_a_stub_are_stubs_even_where_the_real_ones_are_loaded():

    real = importlib.import_module("json.decoder")
    before = set(sys.modules)

    with stubs("json"):
        import json.decoder as stub
        from json.not_there import deeper

        assert stub is not real
        assert callable(deeper.anything)
    assert sys.modules["json.decoder"] is real
    assert set(sys.modules) == before


def test_stubs_cover_what_is_here_and_give_it_back():
    import json

    with stubs("json", marker="mine"):
        import json as stub

        assert stub.marker == "mine"
    assert sys.modules["json"] is json


def test_a_module_that_is_not_forgotten_stays(engine):
    with stubs(*NAMES, "flash_attention_that_is_not_here.layers"):
        importlib.import_module(engine)
    try:
        assert engine in sys.modules
    finally:
        for name in [name for name in sys.modules if name.startswith(engine)]:
            del sys.modules[name]


@pytest.fixture(name="heavy")
def _heavy(tmp_path, monkeypatch):
    """An installed package whose `__init__` needs what is not here."""
    inner = tmp_path / "heavy_engine" / "paging"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("import a_gpu_that_is_not_here\n")
    (inner / "pool.py").write_text("from ..config import SIZE\nfrom .blocks import take\nTAKEN = take(SIZE)\n")
    (inner / "blocks.py").write_text("def take(n): return list(range(n))\n")
    (inner.parent / "config.py").write_text("SIZE = 3\n")

    class Installed:
        version = "1"
        locate_file = staticmethod(tmp_path.joinpath)

    monkeypatch.setattr(support, "distribution", lambda name: Installed)
    monkeypatch.syspath_prepend(tmp_path)
    return "heavy_engine"


def test_packages_are_imported_from_without_running_them(heavy):
    with pytest.raises(ModuleNotFoundError, match="a_gpu_that_is_not_here"):
        importlib.import_module(f"{heavy}.paging.pool")
    before = set(sys.modules)

    with packages(heavy, heavy, f"{heavy}.paging"):
        pool = importlib.import_module(f"{heavy}.paging.pool")

    assert pool.TAKEN == [0, 1, 2]
    assert set(sys.modules) == before


def test_what_was_imported_of_a_package_comes_back(heavy):
    mine = module(f"{heavy}.config", SIZE=7)
    sys.modules[f"{heavy}.config"] = mine
    try:
        with packages(heavy, heavy, f"{heavy}.paging"):
            assert importlib.import_module(f"{heavy}.paging.pool").TAKEN == [0, 1, 2]
        assert sys.modules[f"{heavy}.config"] is mine
    finally:
        del sys.modules[f"{heavy}.config"]


def test_slots_follow_from_the_table():
    class Mine(TableTarget):
        def open(self, config):
            self.block_size = config.block_size

        def table(self, name):
            return [3, 1]

    target = Mine()
    target.open(Geometry(block_size=2, num_blocks=4))

    assert target.slots("A") == (6, 7, 2, 3)
    assert target.level == "blocks"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch-flex", "needs torch >= 2.11: pip install 'pagefault[torch]'"),
        ("mini-vllm", "pip install --no-deps --ignore-requires-python mini-vllm==0.1.1"),
        ("tokasaurus", "pip install --no-deps tokasaurus==0.0.4"),
        ("transformers", "pip install torch transformers==5.24.0"),
        ("lmdeploy", "pip install --no-deps lmdeploy==0.18.0"),
    ],
)
def test_a_missing_implementation_is_said_with_the_command(name, said, monkeypatch):
    def missing(distribution):
        raise PackageNotFoundError(distribution)

    make = load(name).make
    source = getattr(sys.modules[make.__module__], "_source", None)
    monkeypatch.setattr(support, "distribution", missing)
    monkeypatch.setitem(sys.modules, "torch", None)
    if source is not None:
        source.cache_clear()

    reason = builtin_error(name)

    assert reason is not None
    assert said in reason


@pytest.mark.parametrize("name", ["ours", "mini-vllm", "tokasaurus"])
def test_bookkeeping_needs_no_torch(name):
    code = f"""
import sys
from properties.targets import Unavailable, load
try:
    load({name!r}).make()
except Unavailable:
    pass
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
