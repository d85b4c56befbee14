"""Real-process faults: each fault in a run of its own on the local stack, judged by what the world looks like after it."""
