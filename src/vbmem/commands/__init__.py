"""Commands of the command line; `vbmem.cli` puts them together."""
