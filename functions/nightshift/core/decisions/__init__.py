"""One module for each thing that a shift waits for; ``core.decide`` dispatches to them."""
