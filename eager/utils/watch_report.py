"""Reports of a watch: a table, remarks in sentences, charts, and a page with all of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..nn.modules.activation import ACTIVATIONS
from ..viz import charts as pictures
from ..viz.charts import Curves, Picture, Ridges, short
from ..viz.graph_layout import escaped

if TYPE_CHECKING:
    from .watcher import Moments, Watch

ACTIVATION_NAMES = {cls.__name__ for cls in ACTIVATIONS}
ROWS = 16  # of a picture; of more layers some are shown
USUAL = -3.0  # log10 of the ratio of update to data, for a learning rate that is about right

Row = tuple[str, ...]


def last(column: list[Any]) -> Any:
    """The newest value of a column."""
    return next((v for v in reversed(column) if v is not None), None)


# ---- sentences


def remarks(seen: dict[str, Any]) -> list[str]:
    """Return remarks on what looks wrong in the newest numbers."""
    found = []
    for name, layer in seen["layers"].items():
        who = f"{name} ({layer['type']})"
        found += [f"{who}: {why}" for why in _layer_remarks(layer)]
    for name, parameter in seen["parameters"].items():
        found += [f"{name}: {why}" for why in _parameter_remarks(parameter)]
    return found


def _layer_remarks(layer: dict[str, Any]) -> list[str]:
    std, flat, dead, gradient = (last(layer[key]) for key in ("std", "saturated", "dead", "grad_std"))
    found = []
    if std is not None and not math.isfinite(std):
        found.append("its values are not finite")
    if gradient is not None and not math.isfinite(gradient):
        found.append("the gradient that comes back is not finite")
    if flat is not None and flat > 0.5 and "relu" not in layer["type"].lower():
        found.append(f"{flat:.0%} of its values are saturated, where the slope is next to nothing")
    if dead is not None and dead >= 0.05:
        found.append(f"{dead:.0%} of its units are dead for the whole batch")
    if gradient == 0:
        found.append("no gradient comes back")
    return found


def _parameter_remarks(parameter: dict[str, Any]) -> list[str]:
    gradient, update = last(parameter["grad_std"]), last(parameter["update_to_data"])
    found = []
    if gradient is not None and not math.isfinite(gradient):
        found.append("its gradient is not finite")
    elif gradient == 0 and last(parameter["grad_mean"]) == 0:
        found.append("its gradient is zero")
    if len(parameter["shape"]) > 1 and update is not None:
        if update > -1.5:
            found.append(f"an update is 10^{update:.1f} of the weights: the learning rate looks too high")
        elif update < -5:
            found.append(f"an update is 10^{update:.1f} of the weights: they hardly learn")
    return found


# ---- tables


def layer_rows(seen: dict[str, Any]) -> tuple[Row, list[Row]]:
    head = ("layer", "type", "shape", "mean", "std", "saturated", "dead", "grad mean", "grad std")
    rows = []
    for name, layer in seen["layers"].items():
        numbers = [last(layer[key]) for key in ("mean", "std", "saturated", "dead", "grad_mean", "grad_std")]
        rows.append((name, layer["type"], _shape(layer["shape"]), *_numbers(numbers, (2, 3))))
    return head, rows


def parameter_rows(seen: dict[str, Any]) -> tuple[Row, list[Row]]:
    head = ("parameter", "shape", "mean", "std", "grad mean", "grad std", "grad:data", "log10 update:data")
    rows = []
    for name, parameter in seen["parameters"].items():
        keys = ("mean", "std", "grad_mean", "grad_std", "grad_to_data", "update_to_data")
        rows.append((name, _shape(parameter["shape"]), *_numbers([last(parameter[key]) for key in keys])))
    return head, rows


def _shape(shape: Any) -> str:
    return "x".join(str(n) for n in shape) if shape else "1"


def _numbers(values: list[Any], percents: tuple[int, ...] = ()) -> list[str]:
    return [f"{v:.1%}" if i in percents and v is not None else short(v, 3) for i, v in enumerate(values)]


def table(seen: dict[str, Any]) -> str:
    if not seen["steps"]:
        return "nothing was seen yet: run a forward and a backward pass, and a step of the optimizer"
    parts = [f"step {seen['steps'][-1]} ({len(seen['steps'])} observed)"]
    for head, rows in (layer_rows(seen), parameter_rows(seen)):
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = []
        for row in (head, *rows):
            cells = [
                cell.ljust(w) if i < head.index("shape") else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        parts.append("\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]))
    found = remarks(seen)
    return "\n\n".join([*parts, *(["\n".join(f"! {remark}" for remark in found)] if found else [])])


# ---- pictures


def drawn(watch: Watch) -> list[Picture]:
    """Distributions of the newest step, and curves over all of them."""
    seen, step = watch.to_dict(), watch.steps[-1] if watch.steps else None
    if step is None:
        raise RuntimeError("watch: nothing was seen yet: run a forward and a backward pass, and a step of the optimizer")
    when = f"step {step.number}"
    layers = _some(list(seen["layers"]), [n for n, layer in seen["layers"].items() if _is_nonlinear(layer["type"])])
    weights = _some([n for n, p in seen["parameters"].items() if len(p["shape"]) > 1] or list(seen["parameters"]), [])
    labels = {name: f"{name} {seen['layers'][name]['type']}" for name in layers}
    found: list[Picture] = [
        Ridges("Activations", f"outputs of each layer, {when}", _rows(layers, labels, step.activations)),
        Ridges("Gradients of activations", f"what comes back to each layer, {when}", _rows(layers, labels, step.gradients)),
        Ridges("Gradients of weights", f"of each weight matrix, {when}", _rows(weights, {}, step.weight_gradients)),
    ]
    ratios = [(name, seen["parameters"][name]["update_to_data"]) for name in weights]
    ratios = [row for row in ratios if any(v is not None for v in row[1])]
    if ratios:
        subtitle = f"log10(std(update) / std(data)); about {USUAL:g} (dashed) is usual"
        found.append(Curves("Update : data", subtitle, seen["steps"], ratios, USUAL))
    for key, title, subtitle in (
        ("saturated", "Saturation", "fraction of outputs where the activation function is flat"),
        ("dead", "Dead units", "fraction of units that are flat for the whole batch"),
    ):
        rows = [(labels[name], seen["layers"][name][key]) for name in layers]
        rows = [row for row in rows if any(v is not None for v in row[1])]
        highest = max((v for _, row in rows for v in row if v is not None), default=0.0)
        if highest > 0:
            found.append(Curves(title, subtitle, seen["steps"], rows, bounds=(-0.02 * highest, max(1.1 * highest, 0.1))))
    return [picture for picture in found if picture.rows]


def _rows(names: list[str], labels: dict[str, str], group: dict[str, Moments]) -> list[Any]:
    return [
        (labels.get(name, name), group[name].sample, short(group[name].resolve()["std"])) for name in names if name in group
    ]


def _is_nonlinear(kind: str) -> bool:
    """True for activations: layers by the name of their class, functions, and tensors that were noted."""
    return kind == "Tensor" or kind[:1].islower() or kind in ACTIVATION_NAMES


def _some(names: list[str], first: list[str]) -> list[str]:
    """Those that matter most, if there are several, else all; some of them, evenly, where there is no room for so many."""
    found = first if len(first) > 1 else names
    return found if len(found) <= ROWS else [found[round(i * (len(found) - 1) / (ROWS - 1))] for i in range(ROWS)]


def plot(watch: Watch, path: Path, dark: bool) -> None:
    found = drawn(watch)
    if path.suffix.lower() == ".svg":
        path.write_text(pictures.sheet(found, pictures.style(pictures.DARK if dark else pictures.LIGHT)), encoding="utf-8")
    else:
        pictures.with_matplotlib(found, path, pictures.DARK if dark else pictures.LIGHT)


# ---- the page

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --back: #f3f4f6; --paper: #ffffff; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --mark: #dc2626; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --back: #020617; --paper: #0f172a; --ink: #e5e7eb; --soft: #94a3b8; --line: #273449; --mark: #f87171; }}
}}
body {{ margin: 0 auto; max-width: 1300px; padding: 24px; background: var(--back); color: var(--ink); font: 14px/1.5 {font}; }}
h1 {{ font-size: 22px; margin: 0; }}
h2 {{ font-size: 16px; margin: 28px 0 8px; }}
p {{ color: var(--soft); margin: 2px 0 18px; }}
ul {{ background: var(--paper); border-left: 3px solid var(--mark); border-radius: 6px; padding: 10px 10px 10px 30px; }}
.pictures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 16px; }}
.pictures > div {{ background: var(--paper); border-radius: 10px; }}
.pictures svg {{ display: block; width: 100%; height: auto; }}
.table {{ overflow-x: auto; background: var(--paper); border-radius: 10px; padding: 6px 16px 12px; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th {{ color: var(--soft); font-weight: 500; }}
.left {{ text-align: left; }}
tr:last-child td {{ border-bottom: 0; }}
{rules}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{subtitle}</p>
{remarks}
<div class="pictures">
{pictures}
</div>
<h2>Layers</h2>
{layers}
<h2>Parameters</h2>
{parameters}
</body>
</html>
"""


def page(watch: Watch) -> str:
    seen, found = watch.to_dict(), drawn(watch)
    said = "".join(f"<li>{escaped(remark)}</li>" for remark in remarks(seen))
    count = sum(p.numel() for p in watch.parameters.values())
    name = type(watch.model).__name__
    return PAGE.format(
        title=escaped(f"Watching {name}"),
        subtitle=f"{count:,} parameters; {len(seen['steps'])} steps observed, the last one is step {seen['steps'][-1]}",
        font=pictures.FONT,
        rules=pictures.themed(),
        remarks=f"<ul>{said}</ul>" if said else "",
        pictures="\n".join(f"<div>{picture.svg()}</div>" for picture in found),
        layers=_html_table(*layer_rows(seen)),
        parameters=_html_table(*parameter_rows(seen)),
    )


def _html_table(head: Row, rows: list[Row]) -> str:
    left = head.index("shape")

    def line(cells: Row, tag: str) -> str:
        marked = (f'<{tag} class="left">' if i < left else f"<{tag}>" for i in range(len(cells)))
        return "<tr>" + "".join(f"{start}{escaped(cell)}</{tag}>" for start, cell in zip(marked, cells, strict=True)) + "</tr>"

    return f'<div class="table"><table>{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table></div>'
