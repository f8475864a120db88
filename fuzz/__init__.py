"""Campaigns and the command line. Importing it settles where our other packages come from."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def _hold_siblings() -> None:
    """Import our other packages from beside this one, once and for all: a user's folder may hold a `properties.py`."""
    root = str(Path(__file__).parent.parent)
    sys.path.insert(0, root)
    try:
        for name in ("paged_ref", "paged_impl", "properties"):
            importlib.import_module(name)
    finally:
        sys.path.remove(root)


_hold_siblings()
