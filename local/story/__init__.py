"""The story of one run on one computer: what ``python -m local demo`` does, shows, measures and asserts."""
