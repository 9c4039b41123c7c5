"""The app behind the pages: its routes and its error responses."""

from __future__ import annotations

import logging
from http import HTTPStatus
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_horsies.exceptions import AccessDenied, DatabaseBusy, DatabaseUnreachable, HorsiesError, SchemaError
from airflow_horsies.links import URL_PREFIX, base_path
from airflow_horsies.ui.access import conn_id
from airflow_horsies.ui.answers import problem
from airflow_horsies.ui.routes import callbacks as callback_routes
from airflow_horsies.ui.routes import instance as instance_routes
from airflow_horsies.ui.routes import monitoring, workflow_actions
from airflow_horsies.ui.routes import overview as overview_routes
from airflow_horsies.ui.routes import pages as page_routes
from airflow_horsies.ui.routes import reference as reference_routes
from airflow_horsies.ui.routes import repair as repair_routes
from airflow_horsies.ui.routes import report as report_routes
from airflow_horsies.ui.routes import run as run_routes
from airflow_horsies.ui.routes import workflow as workflow_routes

RETRY_AFTER_SECONDS = 5

log = logging.getLogger(__name__)

app = FastAPI(
    title="Horsies",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    redirect_slashes=False,
)
for module in (
    callback_routes,
    instance_routes,
    repair_routes,
    workflow_routes,
    workflow_actions,
    run_routes,
    overview_routes,
    report_routes,
    reference_routes,
    page_routes,
    monitoring,
):
    app.include_router(module.router)


@app.exception_handler(StarletteHTTPException)
async def answer_http_error(request: Request, error: StarletteHTTPException) -> Response:
    if error.status_code == HTTPStatus.UNAUTHORIZED and request.headers.get("sec-fetch-dest") == "document":
        return log_in_first(request)
    if _asks_for_page(request):
        return page_routes.problem_page(error.status_code, str(error.detail))
    return problem(error.status_code, str(error.detail), headers=error.headers)


@app.exception_handler(RequestValidationError)
async def answer_invalid_request(_: Request, error: RequestValidationError) -> Response:
    # Does not repeat the invalid values.
    problems = [f"{item['loc'][-1]}: {item['msg']}" for item in error.errors()]
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(problems))


@app.exception_handler(AirflowNotFoundException)
async def answer_missing_connection(_: Request, error: Exception) -> Response:
    return _unavailable(
        error,
        f"Airflow has no connection {conn_id()!r}. The api-server reads the horsies database through the connection in "
        "the option [horsies] conn_id. Add the connection, or set the option.",
    )


@app.exception_handler(HorsiesError)
async def answer_horsies_error(_: Request, error: HorsiesError) -> Response:
    """Users may not see the database's address, so the full message goes to the log only."""
    match error:
        case DatabaseBusy():
            detail = "The horsies database did not answer in time: it is locked, slow or overloaded."
        case DatabaseUnreachable():
            detail = "The horsies database cannot be reached."
        case AccessDenied():
            detail = "The horsies database refuses Airflow's login or lacks a privilege for it."
        case SchemaError():
            detail = "The database has no horsies tables that this release of airflow-horsies can read."
        case _:
            detail = "The horsies database could not be read."
    return _unavailable(error, f"{detail} See the api-server's log, or run 'airflow horsies check'.")


@app.exception_handler(Exception)
async def answer_unexpected_error(_: Request, error: Exception) -> Response:
    # Starlette raises it again after the response, so it is logged.
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "An unexpected error occurred. See the api-server's log.")


def log_in_first(request: Request) -> Response:
    """Redirect to Airflow's login and back to the page. A page inside Airflow shows the problem instead."""
    page = f"{base_path()}{URL_PREFIX}{request.scope['path'].removeprefix(request.scope.get('root_path', ''))}"
    query = urlencode({"next": quote(page, safe="/")})
    return RedirectResponse(f"{base_path()}/api/v2/auth/login?{query}", HTTPStatus.SEE_OTHER)


def _asks_for_page(request: Request) -> bool:
    """A browser asks for HTML when a user opens an address; the page scripts ask for JSON."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def _unavailable(error: Exception, detail: str) -> Response:
    log.warning("The Horsies pages cannot read the database: %s: %s", type(error).__name__, error)
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"retry-after": str(RETRY_AFTER_SECONDS)})
