"""`python -m fuzz` is `pagefault`."""

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path[0] in ("", str(Path.cwd())) and not sys.flags.safe_path:
    del sys.path[0]  # as for the installed command: what lies in the current folder hides nothing

from fuzz.cli import main

if __name__ == "__main__":
    main()
