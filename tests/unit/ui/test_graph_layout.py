"""The drawing of a workflow: what is folded, and where each node is drawn. The scripts run in deno."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.docs.payload_types import TYPES_FILE

DENO = Path(sys.executable).parent / "deno"
SCRIPTS = TYPES_FILE.parent / "instance" / "graph"
PROGRAM = """
const { Tree } = await import(Deno.args[0] + "/scene.js");
const { layOut } = await import(Deno.args[0] + "/layout.js");
const [data, open] = JSON.parse(await new Response(Deno.stdin.readable).text());
const tree = new Tree(data);
const keys = new Set(open === "all" ? [] : open);
for (let more = true; open === "all" && more;) {
  more = false;
  const visit = (items) => items.forEach((item) => {
    if (item.canFold && !keys.has(item.key)) more = keys.add(item.key) !== null;
    if (item.inner) visit(item.inner.items);
  });
  visit(tree.scene(keys).items);
}
const { boxes, lines, width, height } = layOut(tree.scene(keys));
const first = tree.firstFailure;
console.log(JSON.stringify({
  width, height, lines, failure: first ? tree.path(first) : null,
  boxes: boxes.map(({ item, ...place }) => ({ ...place, key: item.key, kind: item.kind, open: item.inner !== null,
    members: item.members.length })),
}));
"""

pytestmark = pytest.mark.skipif(not DENO.exists(), reason="deno is installed with the extra 'dev' only")


def node(index: int, after: list[str] | None = None, *, workflow: str = "root", **changed: Any) -> dict[str, Any]:
    fields = {"name": f"n{index}", "task_name": "t", "state": "PENDING", "is_workflow": False, "inner": None}
    return {"workflow_id": workflow, "index": index, **fields, "after": after or [], "finished_at": None, **changed}


def part(id_: str, parent: str | None = None, index: int | None = None, *, wrapper: bool = False) -> dict[str, Any]:
    return {"id": id_, "name": id_, "parent": parent, "parent_index": index, "is_wrapper": wrapper}


def lay_out(nodes: list[dict[str, Any]], parts: Any = None, opened: Any = ()) -> dict[str, Any]:
    given = json.dumps([{"parts": parts or [part("root")], "nodes": nodes}, opened])
    ran = subprocess.run(
        [DENO, "eval", "--quiet", PROGRAM, SCRIPTS.as_uri()],
        input=given,
        env={**os.environ, "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    laid: dict[str, Any] = json.loads(ran.stdout)
    return laid


def place_of(laid: dict[str, Any], key: str) -> dict[str, Any]:
    (box,) = [each for each in laid["boxes"] if each["key"] == key]
    found: dict[str, Any] = box
    return found


def require_readable(laid: dict[str, Any]) -> None:
    """No two boxes overlap, unless one is around the other, and every line goes from left to right."""
    for one, other in combinations(laid["boxes"], 2):
        apart = (
            one["x"] + one["width"] <= other["x"]
            or other["x"] + other["width"] <= one["x"]
            or one["y"] + one["height"] <= other["y"]
            or other["y"] + other["height"] <= one["y"]
        )
        assert apart or is_around(one, other) or is_around(other, one), (one, other)
    for box in laid["boxes"]:
        assert box["x"] >= 0 and box["y"] >= -0.001
        assert box["x"] + box["width"] <= laid["width"] + 0.001
        assert box["y"] + box["height"] <= laid["height"] + 0.001
    for line in laid["lines"]:
        assert all(x <= later + 0.001 for (x, _), (later, _) in pairwise(line["points"]))
        start, end = place_of(laid, line["from"]), place_of(laid, line["to"])
        assert line["points"][0][0] == pytest.approx(start["x"] + start["width"])
        assert line["points"][-1][0] == pytest.approx(end["x"])


def is_around(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return bool(
        outer["open"]
        and outer["x"] <= inner["x"]
        and outer["y"] <= inner["y"]
        and outer["x"] + outer["width"] >= inner["x"] + inner["width"]
        and outer["y"] + outer["height"] >= inner["y"] + inner["height"]
    )


def test_node_is_right_of_what_it_waits_for() -> None:
    laid = lay_out([node(0), node(1, ["n0"]), node(2, ["n0"]), node(3, ["n1", "n2"]), node(4, ["n0", "n3"])])
    require_readable(laid)
    xs = [place_of(laid, f"root:{index}")["x"] for index in range(5)]
    assert xs[0] < xs[1] == xs[2] < xs[3] < xs[4]
    assert len(laid["lines"]) == 6


def test_workflow_of_500_nodes_is_drawn_without_overlaps() -> None:
    chance = random.Random(7)
    nodes = [node(0)]
    for index in range(1, 500):
        before = chance.sample(range(max(0, index - 40), index), k=min(index, chance.choice([0, 1, 1, 2, 3])))
        nodes.append(node(index, [f"n{each}" for each in before]))
    laid = lay_out(nodes, opened="all")
    require_readable(laid)
    assert {box["key"] for box in laid["boxes"]} >= {f"root:{index}" for index in range(500)}


def test_many_equal_nodes_are_one_until_they_are_unfolded() -> None:
    nodes = [node(0), *(node(index, ["n0"]) for index in range(1, 499)), node(499, [f"n{n}" for n in range(1, 499)])]
    folded = lay_out(nodes)
    assert [(box["kind"], box["members"]) for box in folded["boxes"]] == [("task", 0), ("group", 498), ("task", 0)]
    assert len(folded["lines"]) == 2
    unfolded = lay_out(nodes, opened="all")
    require_readable(unfolded)
    assert len(unfolded["boxes"]) == 501
    # Square rather than one long column.
    assert unfolded["height"] < 3 * unfolded["width"]


def test_few_equal_nodes_are_drawn_one_by_one() -> None:
    laid = lay_out([node(0), *(node(index, ["n0"]) for index in range(1, 12))])
    assert [box["kind"] for box in laid["boxes"]] == ["task"] * 12


def test_workflow_inside_is_folded_until_it_is_opened() -> None:
    parts = [part("root"), part("child", "root", 1), part("grandchild", "child", 0)]
    nodes = [
        node(0),
        node(1, ["n0"], is_workflow=True, inner="child"),
        node(2, ["n1"]),
        node(0, workflow="child", is_workflow=True, inner="grandchild", name="deep"),
        *(node(index, [f"n{index - 1}"] if index else [], workflow="grandchild") for index in range(3)),
    ]
    folded = lay_out(nodes, parts)
    assert [(box["key"], box["kind"], box["members"]) for box in folded["boxes"]] == [
        ("root:0", "task", 0),
        ("root:1", "workflow", 3),
        ("root:2", "task", 0),
    ]
    opened = lay_out(nodes, parts, ["root:1"])
    require_readable(opened)
    assert [box["open"] for box in opened["boxes"]] == [False, True, False, False]
    assert place_of(opened, "child:0")["x"] > place_of(opened, "root:1")["x"]
    everything = lay_out(nodes, parts, "all")
    require_readable(everything)
    assert len(everything["boxes"]) == 7


def test_wrapper_of_a_registered_workflow_is_left_out_once_that_runs() -> None:
    nodes = [node(0, name="begin"), node(1, ["begin"], name="workflow", is_workflow=True)]
    waiting = lay_out(nodes, [part("root", wrapper=True)])
    assert [box["key"] for box in waiting["boxes"]] == ["root:0", "root:1"]
    nodes[1]["inner"] = "child"
    running = lay_out([*nodes, node(0, workflow="child")], [part("root", wrapper=True), part("child", "root", 1)])
    assert [box["key"] for box in running["boxes"]] == ["child:0"]


def test_first_failure_is_the_innermost_and_earliest() -> None:
    parts = [part("root"), part("child", "root", 1)]
    failed = {"state": "FAILED"}
    nodes = [
        node(0, **failed, finished_at="2026-01-01T00:00:09Z"),
        node(1, is_workflow=True, inner="child", **failed, finished_at="2026-01-01T00:00:01Z"),
        node(0, workflow="child", name="cause", **failed, finished_at="2026-01-01T00:00:01Z"),
    ]
    assert lay_out(nodes, parts)["failure"] == "n1 / cause"


def test_a_circle_or_an_unknown_name_does_not_hang_the_page() -> None:
    """horsies has neither; a page must bear both."""
    require_boxes = lay_out([node(0, ["n1"]), node(1, ["n0"]), node(2, ["nowhere"])])
    assert len(require_boxes["boxes"]) == 3
