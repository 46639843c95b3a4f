"""The exceptions of Braze, under the name that users of torch.compile look for."""

from braze.errors import (
    BackendFailed,
    BrazeError,
    BrazeWarning,
    BuildFailed,
    CaptureError,
    CompilerNotFound,
    ConstraintViolated,
    GraphBreakError,
    InternalError,
    InvalidBackend,
    InvalidIR,
    InvalidOption,
    LeftToEagerError,
    RecompileLimitExceeded,
    Unsupported,
    UserError,
)

__all__ = [
    "BackendFailed",
    "BrazeError",
    "BrazeWarning",
    "BuildFailed",
    "CaptureError",
    "CompilerNotFound",
    "ConstraintViolated",
    "GraphBreakError",
    "InternalError",
    "InvalidBackend",
    "InvalidIR",
    "InvalidOption",
    "LeftToEagerError",
    "RecompileLimitExceeded",
    "Unsupported",
    "UserError",
]
