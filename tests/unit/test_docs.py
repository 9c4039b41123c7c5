"""The pages, looked at: every block has a runner, every link leads somewhere, every message can be produced.

What can be run is run by tests/integration/test_docs.py. What needs a machine or a cluster that is not here is checked
here as far as that goes, and each test says how far.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import airflow
import pytest
import yaml
from airflow.providers.common.compat.sdk import conf
from packaging.requirements import Requirement

from airflow_horsies import __version__
from airflow_horsies.provider_info import CONFIG
from tests.docs import llms
from tests.docs.architecture import PACKAGE
from tests.docs.blocks import (
    CHECKOUT,
    DOCS,
    README,
    RUNNERS,
    START_COMMAND,
    WORKER_COMMAND,
    Block,
    all_blocks,
    commands,
    documents,
    is_checked_only,
    name_of,
    pages,
    text_of,
)
from tests.docs.messages import is_produced
from tests.docs.outputs import pattern_of
from tests.docs.versions import with_versions

BASH = all_blocks("bash")
CHECKED = sorted({(each, block) for block in BASH for each in commands(block) if is_checked_only(each)}, key=str)
SETTINGS = ("HORSIES_DATABASE_URL", "HORSIES_QUEUES", "HORSIES_SPARK_MASTER", "HORSIES_SPARK_CONF")
# Of the values.yaml of Airflow's chart, those the guide uses, with their types.
CHART_VALUES = {
    ("airflowVersion",): str,
    ("defaultAirflowRepository",): str,
    ("defaultAirflowTag",): str,
    ("secret",): list,
    ("triggerer", "enabled"): bool,
    ("triggerer", "replicas"): int,
}
CHART_SECRET = {"envName", "secretName", "secretKey"}


def checked(*programs: str) -> list[tuple[str, Block]]:
    return [each for each in CHECKED if Path(each[0].split()[0]).name in programs]


def named(each: object) -> str:
    return each.named if isinstance(each, Block) else ""


# -- all blocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", all_blocks(), ids=named)
def test_block_has_a_runner(block: Block) -> None:
    assert block.info, f"{block.named}: an indented block has no language; fence it, and name it: {', '.join(RUNNERS)}"
    assert block.info in RUNNERS, f"{block.named}: nothing runs {block.info!r}; known are {', '.join(RUNNERS)}"


@pytest.mark.parametrize("block", [each for each in all_blocks() if each.language == "python"], ids=named)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.named, "exec")


def test_every_page_is_in_the_navigation() -> None:
    assert sorted(llms.nav_pages()) == sorted(map(name_of, pages()))


def test_every_guide_is_in_the_index() -> None:
    listed = re.findall(r"\]\((how-to/[\w-]+\.md)\)", (DOCS / "index.md").read_text())
    assert sorted(listed) == sorted(name_of(path) for path in (DOCS / "how-to").glob("*.md"))


def test_every_decision_is_in_its_index() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "decisions" / "index.md").read_text())
    assert sorted([*listed, "index.md"]) == sorted(path.name for path in (DOCS / "decisions").glob("*.md"))


def test_list_for_programs_is_that_of_the_navigation() -> None:
    assert (DOCS / llms.NAME).read_text() == llms.text(), "the pages have changed: run 'make docs'"


def test_readme_is_short_and_begins_with_a_task_and_a_dag() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 150
    ends = [number for number, line in enumerate(lines, start=1) if line == "```"]
    begins = [line for line in lines[:40] if line.startswith("```python")]
    assert begins == ["```python tasks", "```python dag"] and ends[1] <= 40


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        led = path.parent / file if file else path
        assert led.exists(), f"{name_of(path)}: {target}"
        if anchor:
            assert anchor in {_anchor(heading) for heading in _headings(led)}, f"{name_of(path)}: {target}"


def _headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", all_blocks("text message"), ids=named)
def test_message_can_be_produced(block: Block) -> None:
    for line in block.text.splitlines():
        assert is_produced(line, PACKAGE), f"{block.named}: this package says nothing like {line!r}"


@pytest.mark.parametrize("block", all_blocks("text airflow"), ids=named)
def test_message_of_airflow_can_be_produced(block: Block) -> None:
    scheduler = Path(airflow.__file__).parent / "jobs" / "scheduler_job_runner.py"
    # It goes on with a link.
    assert is_produced(f"{block.text.strip()} Learn more: https://airflow.apache.org/docs/apache-airflow/stable/"
                       "troubleshooting.html#task-state-changed-externally", scheduler)  # fmt: skip


# -- commands that need more than there is here ------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "block"), checked("pip"), ids=named)
def test_what_is_installed_is_declared(command: str, block: Block) -> None:
    """Checked: the extras exist, and what they require is here in a fitting version. Nothing is downloaded."""
    _require_installable(command)


def _require_installable(command: str) -> None:
    distribution = importlib.metadata.distribution("airflow-horsies")
    words = [word for word in shlex.split(command)[1:] if not word.startswith("-")]
    assert words[0] == "install"
    for word in words[1:]:
        # The package is on no index: a name would install what somebody else has put there.
        place, _, extras = word.partition("[")
        assert place == "." or Path(place).name == f"airflow_horsies-{__version__}-py3-none-any.whl", word
        requirement = Requirement(f"airflow-horsies[{extras}" if extras else "airflow-horsies")
        assert requirement.extras <= set(distribution.metadata.get_all("Provides-Extra") or ())
        for needed in map(Requirement, distribution.requires or ()):
            environments = [{"extra": extra} for extra in (*requirement.extras, "")]
            if needed.marker is not None and not any(map(needed.marker.evaluate, environments)):
                continue
            try:
                version = importlib.metadata.version(needed.name)
            except importlib.metadata.PackageNotFoundError:
                # The Airflow side is tested without the worker's.
                assert requirement.extras and sys.version_info < (3, 13)
                continue
            assert needed.specifier.contains(version, prereleases=True), needed


@pytest.mark.parametrize(("command", "block"), checked("make"), ids=named)
def test_target_exists(command: str, block: Block) -> None:
    """Checked only: what they do is tested by themselves, and by tests/acceptance/test_demo.py."""
    target = command.split()[1]
    assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE), target


@pytest.mark.parametrize(("command", "block"), checked("python3.13"), ids=named)
def test_virtual_environment_is_of_a_python_that_horsies_runs_on(command: str, block: Block) -> None:
    assert re.fullmatch(r"python3\.13 -m venv /\S+", command)


@pytest.mark.parametrize(("command", "block"), checked("kubectl"), ids=named)
def test_kubectl_makes_what_the_guide_uses(command: str, block: Block) -> None:
    """Checked: files that are applied are shown, and secrets that are made are the ones that are used. Where kubectl is
    installed, it also reads the command, without a cluster."""
    words = shlex.split(command)
    shown = {each.text.splitlines()[0].removeprefix("# ") for each in all_blocks() if each.guide == block.guide}
    if words[1] == "apply":
        assert words[2] == "-f" and words[3] in shown
        return
    assert words[1:4] == ["create", "secret", "generic"]
    key = words[5].removeprefix("--from-literal=").partition("=")[0]
    assert words[4] in _secrets_used(block.guide), words[4]
    assert _secrets_used(block.guide)[words[4]] in (key, None)
    if shutil.which("kubectl"):
        done = subprocess.run([*words, "--dry-run=client", "-o", "yaml"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert list(yaml.safe_load(done.stdout)["data"]) == [key]


def _secrets_used(guide: str) -> dict[str, str | None]:
    """Names of secrets; the key that is used of each, where one is named."""
    used: dict[str, str | None] = {}
    for block in all_blocks("yaml helm"):
        used |= {each["secretName"]: each["secretKey"] for each in yaml.safe_load(block.text)["secret"]}
    for manifest in _manifests():
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        used |= {each["secretRef"]["name"]: None for each in container["envFrom"]}
    return used


@pytest.mark.parametrize(("command", "block"), checked("helm"), ids=named)
def test_helm_is_given_the_values_of_the_guide(command: str, block: Block) -> None:
    """Checked only: the chart is not here."""
    shown = {each.text.splitlines()[0] for each in all_blocks("yaml helm")}
    assert f"# {command.split()[-1]}" in shown and "--values" in command


@pytest.mark.parametrize(("command", "block"), checked("systemctl"), ids=named)
def test_systemctl_starts_instances_of_the_unit(command: str, block: Block) -> None:
    assert "horsies-worker@.service" in text_of(block.guide)
    assert all(name.startswith("horsies-worker@") for name in command.split()[3:])


@pytest.mark.parametrize(("command", "block"), checked("python"), ids=named)
def test_worker_is_started_with_the_command_that_is_run(command: str, block: Block) -> None:
    """The stack is started by tests/acceptance/test_tutorial.py."""
    assert command in (WORKER_COMMAND, START_COMMAND)


# -- files for other programs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", all_blocks("ini systemd"), ids=named)
def test_unit_is_one_that_systemd_understands(block: Block, tmp_path: Path) -> None:
    """Its command is really run by tests/integration/test_docs.py; systemd itself reads it where it is installed."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block.text)
    service = unit["Service"]
    assert service["ExecStart"].endswith(f"/{WORKER_COMMAND}")
    assert service["EnvironmentFile"] in text_of(block.guide).split("```ini environment")[0]
    # A worker may need 300 s to let its task end.
    assert int(service["TimeoutStopSec"]) > 300
    if shutil.which("systemd-analyze"):
        written = tmp_path / "horsies-worker@1.service"
        written.write_text(block.text.replace(service["ExecStart"].split()[0], f'"{sys.executable}"'))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", written], capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if written.name in line]
        assert complaints == [], done.stderr


@pytest.mark.parametrize("block", all_blocks("ini airflow"), ids=named)
def test_setting_of_airflow_is_one_of_this_provider(block: Block) -> None:
    settings = configparser.ConfigParser()
    settings.read_string(block.text)
    for section in settings.sections():
        for name, value in settings.items(section):
            assert value == CONFIG[section]["options"][name]["default"]


@pytest.mark.parametrize("block", all_blocks("ini airflow changed"), ids=named)
def test_changed_setting_of_airflow_exists_and_is_not_the_default(block: Block) -> None:
    settings = configparser.ConfigParser()
    settings.read_string(block.text)
    assert "horsies" in settings.sections()
    for section in settings.sections():
        for name, value in settings.items(section):
            options = (CONFIG if section in CONFIG else conf.configuration_description)[section]["options"]
            assert value != options[name]["default"]


def _manifests() -> list[dict]:
    return [each for block in all_blocks("yaml kubernetes") for each in yaml.safe_load_all(block.text)]


@pytest.mark.parametrize("block", all_blocks("yaml kubernetes"), ids=named)
def test_manifest_is_valid(block: Block) -> None:
    """Against the schemas of Kubernetes, where unknown keys are errors; its command is the worker's."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all(block.text):
        kubernetes.validate(manifest, kubernetes.latest_version(), strict=True)
        pod = manifest["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > 300
        (container,) = pod["containers"]
        assert container["command"] == WORKER_COMMAND.split()
        assert {each["name"] for each in container["env"]} <= set(SETTINGS)


@pytest.mark.parametrize("block", all_blocks("yaml helm"), ids=named)
def test_values_are_those_of_the_chart(block: Block) -> None:
    """The chart is not here: its keys and their types are compared with what is known of it."""
    values = yaml.safe_load(block.text)
    for section, options in values.pop("config").items():
        assert section != "horsies" or set(options) <= set(CONFIG[section]["options"])
    flat = {(name,): value for name, value in values.items() if not isinstance(value, dict)}
    flat |= {
        (name, below): each
        for name, value in values.items()
        if isinstance(value, dict)
        for below, each in value.items()
    }
    assert {path: type(value) for path, value in flat.items()} == CHART_VALUES
    assert all(set(each) == CHART_SECRET for each in values["secret"])


@pytest.mark.parametrize("block", all_blocks("dockerfile"), ids=named)
def test_image_installs_this_package(block: Block) -> None:
    """Checked: its instructions, what pip installs, and the command; nothing is built."""
    lines = block.text.splitlines()
    assert lines[0].startswith("FROM ")
    assert {line.split()[0] for line in lines} <= {"FROM", "RUN", "COPY", "WORKDIR", "CMD"}
    (install,) = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN pip ")]
    _require_installable(install)
    for line in lines:
        if line.startswith("CMD "):
            assert yaml.safe_load(line.removeprefix("CMD ")) == WORKER_COMMAND.split()


@pytest.mark.parametrize(
    ("said", "otherwise"),
    [
        ("The horsies schema is at version 60, newer than 51, the", "The horsies schema is at version"),
        ("", " and much else"),
        ("None has reported in the last hour", "All of them are on holiday"),
        ("None has reported in the last hour", "The last one reported some days ago"),
        ("Start one with", "Look for one with"),
    ],
)
def test_message_that_nothing_says_is_found_out(said: str, otherwise: str) -> None:
    for message in (
        "The horsies schema is at version 60, newer than 51, the newest that this release is tested with. It is read "
        "but not written. Upgrade airflow-horsies.",
        "There is no live worker. None has reported in the last hour. Tasks wait and do not expire. Start one with "
        "'horsies worker your_module:app'.",
    ):
        assert is_produced(message, PACKAGE)
        changed = message.replace(said, otherwise) if said else message + otherwise
        assert changed == message or not is_produced(changed, PACKAGE)


@pytest.mark.parametrize(
    ("line", "is_as_shown"),
    [
        ("Task 7f3a, attempt 1: COMPLETED in 3.07 s on host-9", True),
        ("Task 7f3a, attempt 1: COMPLETED in 123.45 s on host-9", True),
        ("Task 7f3a, attempt 2: COMPLETED in 3.07 s on host-9", False),
        ("Task 7f3a, attempt 1: FAILED in 3.07 s on host-9", False),
        ("Task 7f3a, attempt 1: COMPLETED in 3.0 s on host-9", False),
        ("Task 7f3b, attempt 1: COMPLETED in 3.07 s on host-9", False),
        ("Task 7f3a, attempt 1: COMPLETED in 3.07 s on host-9 and more", False),
    ],
)
def test_output_is_compared_value_by_value(line: str, is_as_shown: bool) -> None:
    shown = "Task ID, attempt 1: COMPLETED in 41.20 s on node-3"
    assert bool(pattern_of(shown, {"ID": "7f3a", "node-3": "host-9"}).fullmatch(line)) is is_as_shown


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_versions_are_those_of_the_code(path: Path) -> None:
    assert path.read_text() == with_versions(path.read_text()), "the code has changed: run 'make docs'"


def test_releases_that_are_named_are_those_that_are_tested() -> None:
    pins = [CHECKOUT / "constraints.txt", *(CHECKOUT / ".ci").glob("airflow-*.txt")]
    airflows = sorted(
        re.findall(r"^apache-airflow==(\S+)$", "\n".join(path.read_text() for path in pins), re.MULTILINE)
    )
    horsies = re.findall(r"^RELEASES \?= (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)[0].split()
    guide = " ".join(text_of("how-to/upgrade.md").split())
    for releases in (airflows, horsies):
        assert f"on {', '.join(releases[:-1])} and {releases[-1]}" in guide
