"""The web page to play with a memory (`pip install vbmem[app]`, `vbmem app`)."""
