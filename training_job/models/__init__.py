"""Base models that are small enough to ship: ``package://training_job.models/<folder>`` or ``package://training_job/models/<folder>``."""
