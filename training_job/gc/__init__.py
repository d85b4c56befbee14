"""What may be removed from /shared, and removing it so that a kill at any moment loses nothing that was to stay."""
