"""What can go wrong between Fallow and an API server. Messages say what was asked; they never carry a token."""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An answer that is no success. `asked` is the verb and path, `status` the HTTP status (0: no answer)."""

    def __init__(self, asked: str, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{asked}: {status or 'no answer'} {reason}: {message}")
        self.asked, self.status, self.reason, self.message, self.retry_after = (
            asked,
            status,
            reason,
            message,
            retry_after,
        )


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object changed meanwhile, is another one (uid), or exists already (`reason` AlreadyExists)."""


class Gone(ApiError):
    """410: the resourceVersion is too old; list again."""


class Forbidden(ApiError):
    """401 or 403: the service account lacks a right."""


class Refused(ApiError):
    """400, 405, 413, 415 or 422: the request itself is wrong."""


class TooManyRequests(ApiError):
    """429: slow down, or a PodDisruptionBudget is in the way; try again after `retry_after` seconds."""


class Unreachable(ApiError):
    """No connection, a time-out, or a 5xx: nobody knows whether a write took effect."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Refused,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Refused,
    409: Conflict,
    410: Gone,
    413: Refused,
    415: Refused,
    422: Refused,
    429: TooManyRequests,
}


def of_status(asked: str, code: int, status: Mapping[str, Any], retry_after: float = 0.0) -> ApiError:
    """The error for an HTTP status and the Kubernetes Status object that came with it."""
    kind = _BY_STATUS.get(code, Unreachable if code >= 500 else ApiError)
    causes = (status.get("details") or {}).get("causes") or ()
    # A merge patch that names the uid of an earlier object of that name is refused as an attempt to change the uid.
    if code == 422 and any(cause.get("field") == "metadata.uid" for cause in causes):
        kind = Conflict
    return kind(asked, code, str(status.get("reason") or ""), str(status.get("message") or ""), retry_after)
