"""Only what pytest needs at the root of a checkout: the plugin, and Triton's interpreter where there is no GPU."""

import os
import shutil

if not shutil.which("nvidia-smi"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported by anything

pytest_plugins = ["properties.plugin"]
