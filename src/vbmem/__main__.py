"""`python -m vbmem`."""

from vbmem.cli import main

main()
