"""The exceptions of Braze, under the name that users of torch.compile look for."""

from braze.errors import (
    BackendFailed,
    BrazeError,
    BrazeWarning,
    BuildFailed,
    CannotBuild,
    CaptureError,
    CompileForbidden,
    CompilerExpired,
    CompilerNotFound,
    ConstraintViolated,
    GraphBreakError,
    IndexRangeError,
    InternalError,
    InvalidBackend,
    InvalidIR,
    InvalidOption,
    LeftToEagerError,
    OperatorRaises,
    PrivateNameGone,
    RecompileLimitExceeded,
    RecomputedOtherwise,
    Unsupported,
    UserError,
)

# Under the names that torch.compile has for the same.
BackendCompilerFailed = BackendFailed
FailOnRecompileLimitHit = RecompileLimitExceeded

__all__ = [
    "BackendCompilerFailed",
    "BackendFailed",
    "BrazeError",
    "BrazeWarning",
    "BuildFailed",
    "CannotBuild",
    "CaptureError",
    "CompileForbidden",
    "CompilerExpired",
    "CompilerNotFound",
    "ConstraintViolated",
    "FailOnRecompileLimitHit",
    "GraphBreakError",
    "IndexRangeError",
    "InternalError",
    "InvalidBackend",
    "InvalidIR",
    "InvalidOption",
    "LeftToEagerError",
    "OperatorRaises",
    "PrivateNameGone",
    "RecompileLimitExceeded",
    "RecomputedOtherwise",
    "Unsupported",
    "UserError",
]
