"""Airflow's own API answers as before while the horsies database does not, however many ask for our pages."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import httpx
import psycopg
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from tests.chaos.proxy import Proxy
from tests.integration.releases import MOVED
from tests.integration.ui_site import BASE_PATH, INSTANCE, PAGES, Fields, Site, api_path, submit

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

PENDING = 60
# Both are answered by a thread of the server's; the first one also reads Airflow's database.
OWN_PATHS = (f"{BASE_PATH}/api/v2/pools", f"{BASE_PATH}/execution/health")
OUR_PATHS = (
    f"{PAGES}/api/overview",
    f"{PAGES}/api/failures",
    api_path(),
    api_path(tail="/items"),
    api_path(tail="/values"),
    f"{PAGES}/api/dags/{INSTANCE.dag_id}/gantt/{INSTANCE.run_id}",
)
TOLD = re.compile("did not answer in time|cannot be reached")
SAMPLES = 25
MOST_GROWTH = 2.0
# In turns, and all of them count: the machine has other work, too, which may fall on one of the two sides.
ROUNDS = 3
ANSWER_SECONDS = 60


class Crowd:
    """Many who ask for our pages, again and again."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopped = threading.Event()
        self._client = httpx.Client(
            base_url=site.origin,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            limits=httpx.Limits(max_connections=PENDING),
            headers=site.bearer("viewer"),
        )
        self._threads = ThreadPoolExecutor(PENDING)
        self.statuses: Counter[int] = Counter()
        self.sentences: set[str] = set()

    def __enter__(self) -> Crowd:
        self._asked = [self._threads.submit(self._ask, OUR_PATHS[n % len(OUR_PATHS)]) for n in range(PENDING)]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._threads.shutdown()
        self._client.close()
        for each in self._asked:
            each.result()

    def _ask(self, path: str) -> None:
        while not self._stopped.is_set():
            answer = self._client.get(path)
            self.statuses[answer.status_code] += 1
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                self.sentences.add(answer.json()["detail"])


@pytest.fixture
def locked(hook: HorsiesHook, connected: Site) -> Callable[[], AbstractContextManager[None]]:
    submit(hook, count=3)

    @contextmanager
    def lock() -> Iterator[None]:
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            connection.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
            yield

    return lock


@pytest.fixture
def hanging(
    hook: HorsiesHook, site: Site, database: str, fields: Fields, postgres: EmbeddedPostgres
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A database whose connections can be opened, and then say nothing."""
    submit(hook, count=3)
    proxy = Proxy()
    route = proxy.add("ui", int(postgres.conninfo()["port"]))
    site.connect({**fields(database), "host": "127.0.0.1", "port": route.port})

    yield lambda: proxy.half_open("ui")
    proxy.close()


def answer_seconds(site: Site, path: str) -> list[float]:
    taken = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        answer = site.ask(path)
        taken.append(time.perf_counter() - began)
        assert answer.status_code == httpx.codes.OK, answer.text
    return taken


@pytest.mark.parametrize("trouble", ["locked", "hanging"])
def test_airflow_answers_while_the_database_does_not(site: Site, trouble: str, request: pytest.FixtureRequest) -> None:
    cause = request.getfixturevalue(trouble)
    idle: dict[str, list[float]] = {path: [] for path in OWN_PATHS}
    busy: dict[str, list[float]] = {path: [] for path in OWN_PATHS}
    for _ in range(ROUNDS):
        for path in OWN_PATHS:
            idle[path] += answer_seconds(site, path)
        with cause(), Crowd(site) as crowd:
            time.sleep(1)
            for path in OWN_PATHS:
                busy[path] += answer_seconds(site, path)
        # What was read a moment before is shown for a moment.
        assert set(crowd.statuses) <= {httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.OK}, crowd.statuses
        assert crowd.statuses[httpx.codes.SERVICE_UNAVAILABLE] >= PENDING / 2, crowd.statuses
        assert all(TOLD.search(each) for each in crowd.sentences), crowd.sentences
    ratios = {path: statistics.median(busy[path]) / statistics.median(idle[path]) for path in OWN_PATHS}
    told = ", ".join(f"{path.removeprefix(BASE_PATH)} x{ratio:.2f}" for path, ratio in ratios.items())
    print(f"\n{trouble}, {PENDING} pending: {told} of their idle time")
    assert max(ratios.values()) <= MOST_GROWTH, ratios
    assert site.ask(api_path()).status_code == httpx.codes.OK
