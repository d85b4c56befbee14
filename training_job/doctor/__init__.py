"""``python -m training_job doctor``: whether a run can work where this is started, one line a check, with what to fix."""
