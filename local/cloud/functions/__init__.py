"""The Lambda data plane: real function processes behind the invocation API."""

from local.cloud.functions.host import FunctionHost
from local.cloud.functions.spec import FunctionNotFoundError, FunctionSpec, Result, ThrottledError

__all__ = ["FunctionHost", "FunctionNotFoundError", "FunctionSpec", "Result", "ThrottledError"]
