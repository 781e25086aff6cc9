"""The page of `tapejit report` in a real browser: its script runs, its parts find each other, it is light or dark, and fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.browser import DARK, LIGHT, asked, browse, needs_browser
from tapejit.tracer.tools.profiler.timeline import noted
from tapejit.tracer.tools.report.data import gather
from tapejit.tracer.tools.report.page import page

pytestmark = needs_browser

SOURCE = """
import tapejit as tj

tj.manual_seed(0)
model = tj.nn.Sequential(*[x for _ in range(3) for x in (tj.nn.Linear(24, 24), tj.nn.LayerNorm(24), tj.nn.GELU())])
optimizer = tj.optim.AdamW(model.parameters(), lr=1e-3)

@tj.compile(warmup=2, backend="llvm")
def step(x):
    y = model(x)
    loss = (y * y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() > 100:
        return None
    return loss
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("source")
    (folder / "train.py").write_text(SOURCE)
    space: dict[str, Any] = {"__name__": "trained"}
    with pytest.MonkeyPatch.context() as patch, noted() as timelines:
        patch.chdir(folder)
        exec(compile(SOURCE, "train.py", "exec"), space)
        for i in range(14):
            space["step"](tj.randn(32 if i < 8 else 16, 24))
        return gather([space["step"]], "train.py", timelines)


@pytest.fixture(scope="module")
def html(facts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(facts), encoding="utf-8")
    return path


PARTS = """
const count = (selector) => document.querySelectorAll(selector).length;
return {
  ready: document.documentElement.dataset.ready, headings: [...document.querySelectorAll("h2, h3")].map((x) => x.textContent),
  bars: count("#timeline-0 rect"), rows: count("#trace-0 .row"), boxes: count("#graph-0 .canvas:not([hidden]) .kernel"),
  kernels: count("#kernels-0 .kernel-row"), buffers: count("#memory-0 .buffer"), findings: count(".findings > li"),
  guards: count("#guards-0 tbody tr"), loaded: performance.getEntriesByType("resource").length,
};
"""


def test_the_parts_are_there(html: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    found = asked(html, tmp_path, PARTS)
    programs = [p for path in facts["functions"][0]["paths"] for p in path["programs"] if "native" in p]
    assert found["ready"] == "yes" and found["loaded"] == 0
    assert found["headings"][0] == "step" and {"Timeline", "Graph", "Kernels", "Memory", "Guards"} <= set(found["headings"])
    assert found["kernels"] == sum(len(p["native"]["kernels"]) for p in programs)
    assert found["buffers"] == sum(len(p["native"]["memory"]["lives"]) for p in programs)
    assert found["bars"] >= 2 * len(facts["functions"][0]["timeline"]["spans"])
    assert all(found[part] > 0 for part in ("rows", "boxes", "findings", "guards"))


LINKS = """
const row = [...document.querySelectorAll("#trace-0 .row.live[tabindex]")].find((x) => x.textContent.includes("y = model(x)"));
row.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const lit = (selector) => document.querySelectorAll(selector + ".lit").length;
const from_source = { trace: lit(".row:not([tabindex])"), graph: lit(".graph .kernel"), table: lit(".kernel-row > summary") };
const box = document.querySelector(".canvas:not([hidden]) .kernel");
box.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const from_box = { source: lit(".row[tabindex]"), arrows: lit(".arrow"), table: lit(".kernel-row > summary") };
box.dispatchEvent(new MouseEvent("click", { bubbles: true }));
const opened = document.getElementById(box.dataset.go);
const place = opened.querySelector("a.place");
place.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
return { from_source, from_box, opened: opened.open, after: lit("") };
"""


def test_parts_find_each_other(html: Path, tmp_path: Path) -> None:
    found = asked(html, tmp_path, LINKS)
    assert all(n > 0 for n in found["from_source"].values()), found
    assert all(n > 0 for n in found["from_box"].values()), found
    assert found["opened"] and found["after"] == 0


SWITCH = r"""
const shade = () => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number)[0];
const before = shade();
document.getElementById("theme").click();
const after = shade();
document.querySelector("[data-full]").click();
const every = document.querySelectorAll("#graph-0 [data-value]:not([hidden]) .canvas:not([hidden]) .kernel").length;
const width = () => Number(document.querySelector("#graph-0 .canvas:not([hidden]) svg").getAttribute("width"));
const small = width();
document.querySelector("[data-zoom=in]").click();
return { before, after, every, grown: width() / small };
"""


def test_switches(html: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    programs = [p for path in facts["functions"][0]["paths"] for p in path["programs"] if "native" in p]
    counts = {len(p["native"]["kernels"]) for p in programs}
    for look, light in ((LIGHT, True), (DARK, False)):
        folder = tmp_path / str(light)
        folder.mkdir()
        found = asked(html, folder, SWITCH, look)
        assert (found["before"] > 200) is light and (found["after"] > 200) is not light
        assert found["every"] in counts and found["grown"] == pytest.approx(1.25, rel=0.02)


def test_light_and_dark_can_be_read(html: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    pictures = []
    for name, look in (("light", LIGHT), ("dark", DARK)):
        target = tmp_path / f"{name}.png"
        _, console = browse(tmp_path, look, "--window-size=1300,1600", f"--screenshot={target}", html.as_uri())
        assert not console
        pictures.append(image.imread(target)[..., :3])
    light, dark = (p.mean(-1) for p in pictures)
    assert np.median(light) > 0.9 and np.median(dark) < 0.15
    assert 0.002 < (light < 0.35).mean() < 0.2 and 0.002 < (dark > 0.6).mean() < 0.2  # words
    assert all((p.max(-1) - p.min(-1) > 0.35).mean() > 0.003 for p in pictures)  # and bars


CHOICE = """
const lists = [...document.querySelectorAll("[data-choose^=program]")];
const shown = () => lists.map((x) => [...x.closest("[data-choices]").children].filter((y) => y.dataset.value && !y.hidden)
  .map((y) => y.dataset.value));
const before = shown();
lists[1].value = lists[1].options[1].value;
lists[1].dispatchEvent(new Event("change", { bubbles: true }));
const chosen = lists[1].value, after = shown();
const hidden = document.querySelector(`#kernels-0 [data-value="${before[0][0]}"] .kernel-row`);
document.querySelector(`[data-go="${hidden.id}"]`).dispatchEvent(new MouseEvent("click", { bubbles: true }));
return { before, chosen, after, values: lists.map((x) => x.value), again: shown(), open: hidden.open };
"""


def test_programs_are_chosen_for_all_parts_together(html: Path, tmp_path: Path) -> None:
    found = asked(html, tmp_path, CHOICE)
    first = found["before"][0]
    assert len(found["before"]) == 4 and all(x == first and len(x) == 1 for x in found["before"])
    assert found["chosen"] != first[0] and all(x == [found["chosen"]] for x in found["after"])
    assert all(x == first for x in found["again"]) and found["open"]  # going to a kernel shows its program


TABLE = """
const table = document.querySelector("#kernels-0 .kernels"), search = table.querySelector("[data-search]");
const rows = () => [...table.querySelectorAll(".kernel-row")].filter((x) => !x.hidden && x.parentElement === table);
const steps = () => rows().map((x) => Number(x.dataset.step));
const before = steps();
search.value = "ERF";
search.dispatchEvent(new Event("input"));
const found = rows().map((x) => x.textContent.includes("erf")), more = table.querySelector(".more").hidden;
search.value = "";
table.querySelector("[data-order]").click();
const ordered = steps();
table.querySelector("[data-order]").click();
search.dispatchEvent(new Event("input"));
return { before, found, more, ordered, after: steps() };
"""


def test_kernels_can_be_searched_and_put_in_order(html: Path, tmp_path: Path) -> None:
    found = asked(html, tmp_path, TABLE)
    assert found["found"] and all(found["found"]) and found["more"] and len(found["found"]) < len(found["ordered"])
    assert found["ordered"] == sorted(found["ordered"]) and len(found["ordered"]) > len(found["before"])
    assert found["after"] == found["before"]


FITS = """
const wide = document.documentElement.clientWidth;
const inside = (x) => { for (let e = x.parentElement; e; e = e.parentElement) {
  if (["auto", "hidden"].includes(getComputedStyle(e).overflowX) || e.tagName === "svg") return true; } return false; };
const out = [...document.querySelectorAll("body *")].filter((x) => {
  const box = x.getBoundingClientRect();
  return box.width > 0 && (box.right > wide + 1 || box.left < -1) && !inside(x) && !x.classList.contains("skip");
});
return { page: document.documentElement.scrollWidth - wide, out: out.slice(0, 5).map((x) => x.outerHTML.slice(0, 120)) };
"""


@pytest.mark.parametrize("width", [1500, 520])
def test_nothing_sticks_out(html: Path, tmp_path: Path, width: int) -> None:
    found = asked(html, tmp_path, FITS, f"--window-size={width},1400")
    assert found == {"page": 0, "out": []}


def test_hostile_text_does_nothing(facts: dict[str, Any], tmp_path: Path) -> None:
    hostile = "</script></style></title><img src=x onerror=\"document.body.id='bad'\"><script>document.body.id='bad'</script>"
    changed = json.loads(json.dumps(facts))
    (f,) = changed["functions"]
    changed["title"] = changed["failure"] = changed["note"] = f["name"] = f["where"] = hostile
    f["findings"][0].update(reason=hostile, advice=hostile)
    f["timeline"]["spans"][0]["note"] = f["sources"][0]["file"] = hostile
    f["sources"][0]["rows"][0]["text"] = hostile
    for path in f["paths"]:
        path["guards"][0]["words"] = path["guards"][0]["line"] = hostile
        for program in path["programs"]:
            program["python"][0]["code"] = program["python"][-1]["comment"] = hostile
            for k in program.get("native", {"kernels": []})["kernels"]:
                k["what"] = k["nest"] = k["llvm"] = hostile
                k["lines"] = [hostile]
    target = tmp_path / "hostile.html"
    target.write_text(page(changed), encoding="utf-8")
    script = (
        "return [document.body.id, document.images.length, document.scripts.length, document.querySelector('h2').textContent]"
    )
    assert asked(target, tmp_path, script) == ["", 0, 2, hostile]
