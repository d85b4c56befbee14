"""What runs on the Ray cluster: ``python -m training_job run`` and ``python -m training_job verify``."""
