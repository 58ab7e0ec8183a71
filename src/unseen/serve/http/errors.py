"""Errors as JSON of one shape: {"error": kind, "code": for machines, "message": expected, got, remedy}."""

import logging
import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from unseen.errors import ServiceError, UnseenError
from unseen.serve.http.answers import CODE_OF_KIND, CODE_OF_STATUS
from unseen.serve.stream.disk import DISK_IS_FULL, disk_is_full

log = logging.getLogger("unseen.serve")


def error_content(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and the content for an error; of one that is a defect of ours no more than that."""
    if not isinstance(error, UnseenError):
        error = ServiceError(500, "something unexpected happened; the log has it")
    status = error.status if isinstance(error, ServiceError) else 422
    code = getattr(error, "code", "") or CODE_OF_KIND.get(type(error).__name__) or CODE_OF_STATUS.get(status, "request")
    return status, {"error": type(error).__name__, "code": code, "message": str(error)}


def error_response(error: BaseException, data: object = "") -> Response:
    """An error with its own sentence, which does not say where on our disk `data` lies."""
    status, content = error_content(error)
    if data:
        content["message"] = content["message"].replace(f"{data}/", "")
    response = JSONResponse(content, status, {"x-error-code": content["code"]})
    if status in (429, 503, 507):
        response.headers["retry-after"] = "1"
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
        response.headers["connection"] = "close"  # a stranger that sends many requests at once is served one
    return response


def answer_to(error: Exception, data: object) -> Response:
    """The answer to an error raised on purpose, to a full or failing disk, or to a defect of ours, which is logged."""
    if isinstance(error, sqlite3.Error) or getattr(error, "errno", None) in DISK_IS_FULL:
        log.error("no room: %s", error)
        error = disk_is_full(error)
    elif not isinstance(error, UnseenError):
        log.error("unexpected", exc_info=error)
    return error_response(error, data)


async def on_invalid_parameter(_: Request, error: Exception) -> Response:
    """Answer a path, query or header that does not parse."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    what = f"expected the parameters in /docs, got {where}: {first['msg']}; see /docs"
    return error_response(ServiceError(422, what, "parameters"))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router or a form parser refuses; the router names the methods of one route only."""
    assert isinstance(error, HTTPException)
    response = error_response(ServiceError(error.status_code, f"{error.detail}; see /docs"))
    if error.status_code == 405:
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
        response.headers["allow"] = ", ".join(sorted({method for route in routes for method in route.methods}))
    return response


# what else is raised, Front answers
HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    RequestValidationError: on_invalid_parameter,
    HTTPException: on_http_exception,
}
