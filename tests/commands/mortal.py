"""What torchrun starts for test_processes: the command line, whose last argument is the memory file.

At the first attempt the second process dies."""

import os
import sys
from pathlib import Path
from typing import Any

from vbmem.cli import main
from vbmem.memory.writing import VariationalMemory

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
write_stream = VariationalMemory.write_stream


def write_and_die(*args: Any, follow: Any, **how: Any) -> Any:
    return write_stream(*args, follow=lambda done, state: os._exit(9) if done == 3 else None, **how)


if (rank, attempt) == ("1", "0"):
    setattr(VariationalMemory, "write_stream", write_and_die)  # noqa: B010
try:
    main()
except SystemExit as end:
    Path(f"{sys.argv[-1]}.status-{rank}-{attempt}").write_text(str(end.code))
    sys.exit(end.code)
