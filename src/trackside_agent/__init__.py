"""The nodes' side of a run: standard library only, no daemon; it starts with a run and ends with it."""
