"""Access rights: Airflow decides for each DAG."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Annotated, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, ConnectionDetails, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.base import ID_LEN
from airflow.providers.common.compat.sdk import conf
from fastapi import Depends, HTTPException, Path, Request

from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ui.limiting import DEFAULT_RATE, limiter

Method = Literal["GET", "PUT"]


def conn_id() -> str:
    """The connection of the api-server. It does not know the connections of operators."""
    return conf.get("horsies", "conn_id", fallback="") or HorsiesHook.default_conn_name


def require_valid_path(request: Request) -> None:
    """Airflow reads the DAG id ``~`` as "any DAG", its database accepts no NUL, and its audit log no longer ids."""
    too_long = any(len(value) > ID_LEN for value in request.path_params.values())
    if too_long or request.path_params.get("dag_id") == "~" or "\x00" in request.scope["path"]:
        raise HTTPException(HTTPStatus.NOT_FOUND, "This task instance does not exist.")


def require_own_origin(request: Request) -> None:
    """A page of another site can make a browser send a request with the user's cookie, but not with a JSON body from
    this origin. A script with its own token has no origin."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The request must be JSON. Set the content type application/json."
        )
    origin = request.headers.get("origin")
    if origin is None and "authorization" in request.headers:
        return
    own = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    if origin is None or urlsplit(origin).netloc not in own - {None, ""}:
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            "The request does not come from a page of this Airflow. Open the page in Airflow and try again.",
        )


def task_instance_in_path(
    dag_id: str, run_id: str, task_id: str, map_index: Annotated[int, Path(ge=-1, le=2**31 - 1)]
) -> TaskInstanceKey:
    try:
        return TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    except InvalidTask as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None


def may_read_connection(user: GetUserDep) -> bool:
    """For pages that show everything in the database, regardless of the DAG."""
    details = ConnectionDetails(conn_id=conn_id())
    return get_auth_manager().is_authorized_connection(method="GET", details=details, user=user)


def require_connection(user: GetUserDep) -> None:
    if not may_read_connection(user):
        raise HTTPException(HTTPStatus.FORBIDDEN, "You need permission to read the connection to the horsies database.")


def require_callbacks() -> None:
    """What is off looks like an unknown token."""
    if not conf.getboolean("horsies", "callbacks", fallback=False):
        raise unknown_callback()


def unknown_callback() -> HTTPException:
    return HTTPException(HTTPStatus.NOT_FOUND, "There is no callback at this address.")


async def require_rate(request: Request) -> None:
    """Before the body is read and before the database is asked, whatever the token."""
    seconds = limiter.wait_seconds(client_of(request), conf.getint("horsies", "callback_rate", fallback=DEFAULT_RATE))
    if seconds > 0:
        raise HTTPException(
            HTTPStatus.TOO_MANY_REQUESTS,
            "There are too many requests. Try again later.",
            headers={"retry-after": str(math.ceil(seconds))},
        )


def client_of(request: Request) -> str:
    """The address that the server vouches for. Headers of the request are not looked at."""
    return "" if request.client is None else request.client.host


# Every route below /dags/{dag_id} has one of these. They check the DAG in the path.
MAY_READ = [
    Depends(require_valid_path),
    Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)),
]
# Airflow has separate permissions for these.
MAY_READ_LOG = [*MAY_READ, Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))]
MAY_READ_VALUES = [*MAY_READ, Depends(requires_access_dag("GET", DagAccessEntity.XCOM))]
MAY_ACT = [
    Depends(require_valid_path),
    Depends(requires_access_dag("PUT", DagAccessEntity.TASK_INSTANCE)),
    Depends(require_own_origin),
]
# For anybody who has the token in the path, which the route itself looks up.
BY_TOKEN = [Depends(require_callbacks), Depends(require_rate)]
# Queues and workers belong to no DAG.
MAY_SEE_CLUSTER = [Depends(requires_access_view(AccessView.CLUSTER_ACTIVITY))]
MAY_READ_CONNECTION = [Depends(require_connection)]

InstanceDep = Annotated[TaskInstanceKey, Depends(task_instance_in_path)]


class Rights:
    """What the user of a request may do with a DAG beyond the route's own check. Each right is checked once."""

    def __init__(self, request: Request, user: GetUserDep) -> None:
        self._request = request
        self._user = user
        self._known: dict[tuple[Method, DagAccessEntity, str], bool] = {}

    def may_read(self, dag_id: str) -> bool:
        return self._may("GET", dag_id)

    def may_read_log(self, dag_id: str) -> bool:
        return self._may("GET", dag_id, DagAccessEntity.TASK_LOGS)

    def may_read_values(self, dag_id: str) -> bool:
        return self._may("GET", dag_id, DagAccessEntity.XCOM)

    def may_act(self, dag_id: str) -> bool:
        return self._may("PUT", dag_id)

    def _may(self, method: Method, dag_id: str, entity: DagAccessEntity = DagAccessEntity.TASK_INSTANCE) -> bool:
        asked = (method, entity, dag_id)
        if asked not in self._known:
            try:
                requires_access_dag(method, entity, dag_id)(self._request, self._user)
            except HTTPException:
                self._known[asked] = False
            else:
                self._known[asked] = True
        return self._known[asked]


RightsDep = Annotated[Rights, Depends(Rights)]
