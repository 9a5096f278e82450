"""Everything the paper shows, one command each."""
