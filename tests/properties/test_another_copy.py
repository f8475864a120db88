"""Properties of a checkout beside an installed copy of pagefault: the mistake is told, with what to do."""

import subprocess
import sys
from pathlib import Path


def test_properties_of_another_copy_are_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "properties"
    folder.mkdir()
    (folder / "plugin.py").write_text("")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["properties.plugin"]\n')
    (folder / "test_alloc.py").write_text("def test_alloc(clause_id, target_name, contract): pass\n")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "properties"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 4
    assert f"{folder} belongs to another copy of pagefault" in done.stderr
    assert "python -m pytest properties" in done.stderr
