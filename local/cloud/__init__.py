"""The local AWS account: moto, with the data planes that it lacks. ``python -m local.cloud STACK_JSON`` serves it."""
