"""What the engine tests share: the seeded faults, as a module that tests can import under any import mode."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("conftest_engine", Path(__file__).with_name("faults.py"))
_module = module_from_spec(_spec)
sys.modules["conftest_engine"] = _module
_spec.loader.exec_module(_module)
