"""The ``nightshift`` command: check a run spec, ask for a run, look at one."""
