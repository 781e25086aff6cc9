"""`autograd.draw`: the tape as boxes and arrows."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import tapejit as tj
from tapejit import autograd


def micrograd() -> tuple[tj.Tensor, dict[str, tj.Tensor]]:
    a, b, c = (tj.tensor(v, requires_grad=True) for v in (2.0, -3.0, 10.0))
    e = a * b
    d = e + c
    return d * d, {"a": a, "b": b, "c": c, "e": e}


def titles(picture: object, kind: str) -> list[str]:
    return [box.title for box in picture.boxes if box.kind == kind]


def texts(svg: str) -> list[str]:
    return [t.text for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_leaves_ops_and_the_result() -> None:
    loss, names = micrograd()
    picture = autograd.draw(loss, names=names)
    assert sorted(titles(picture, "leaf")) == ["a", "b", "c"]
    assert titles(picture, "op") == ["mul", "add", "mul"]
    assert titles(picture, "result") == ["result"]
    assert {(picture.boxes[s].title, picture.boxes[t].title, label) for s, t, label in picture.arrows} == {
        ("a", "mul", ""),
        ("b", "mul", ""),
        ("mul", "add", ""),
        ("c", "add", ""),
        ("add", "mul", "2 times"),
        ("mul", "result", ""),
    }
    words = texts(picture.svg)
    assert "value 2" in words and "value -6" in words and "value 16" in words and "e" in words


def test_gradients_are_shown_once_there() -> None:
    loss, names = micrograd()
    assert "grad" not in autograd.draw(loss, names=names).svg
    loss.backward()
    words = texts(autograd.draw(loss, names=names).svg)
    assert "grad -24" in words and "grad 16" in words and "grad 8" in words


def test_shapes_dtypes_and_data() -> None:
    x, w = tj.ones(8, 4), tj.ones(4, 3, requires_grad=True)
    b = tj.zeros(3, requires_grad=True)
    h = (x @ w + b).relu() if hasattr(tj.Tensor, "relu") else (x @ w + b).tanh()
    picture = autograd.draw(h.sum(), names={"x": x})
    assert "x" in titles(picture, "data")
    words = texts(picture.svg)
    assert "float32 [8, 4]" in words and "float32 [4, 3]" in words and "[8, 3]" in words
    w.sum().backward()
    w.grad = tj.full((4, 3), 2.0)
    assert "grad, norm 6.928" in texts(autograd.draw((w * 2).sum()).svg)


def test_several_outputs_and_custom_functions() -> None:
    class Swish(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

    x = tj.ones(6, requires_grad=True)
    a, b = x.split(3)
    y = Swish.apply(a) + b
    picture = autograd.draw([y.sum(), b])
    assert "Swish" in titles(picture, "op") and len(titles(picture, "result")) == 2
    labels = {label for s, t, label in picture.arrows if picture.boxes[s].title == "split"}
    assert labels == {"0", "1"}


def test_a_leaf_alone() -> None:
    picture = autograd.draw(tj.ones(2, requires_grad=True))
    assert [box.kind for box in picture.boxes] == ["leaf"] and picture.arrows == []
    ET.fromstring(picture.svg)
    assert [box.kind for box in autograd.draw(tj.ones(2)).boxes] == ["data"]


def test_large_tapes_are_cut() -> None:
    x = tj.ones(3, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y * 1.0
    picture = autograd.draw(y, limit=10)
    assert len(titles(picture, "op")) == 10
    assert ["2990 more ops"] in [box.lines for box in picture.boxes]
    ET.fromstring(picture.svg)


def test_boxes_do_not_overlap_and_arrows_go_right() -> None:
    x, w = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)
    y = x * w
    for i in range(6):
        y = (y + x * (i + 1)).tanh() * w
    picture = autograd.draw(y.sum())
    ET.fromstring(picture.svg)
    boxes = picture.boxes
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart_x = abs(a.x - b.x) >= (a.width + b.width) / 2
            apart_y = abs(a.y - b.y) >= (a.height + b.height) / 2
            assert apart_x or apart_y
    for source, target, _ in picture.arrows:
        assert boxes[source].x + boxes[source].width / 2 < boxes[target].x - boxes[target].width / 2


def test_files_and_notebooks(tmp_path: Path) -> None:
    loss, names = micrograd()
    names['say "hi" <b>'] = names.pop("a")
    picture = autograd.draw(loss, tmp_path / "tape.svg", names=names)
    assert (tmp_path / "tape.svg").read_text(encoding="utf-8") == picture.svg == picture._repr_svg_()
    picture.save(tmp_path / "tape.dot")
    text = (tmp_path / "tape.dot").read_text(encoding="utf-8")
    assert text == picture.dot and text.startswith("digraph tape {") and '\\"hi\\"' in text and "n0 -> " in text
    assert 'say "hi" <b>' in texts(picture.svg)
    with pytest.raises(ValueError, match="which kind of picture"):
        picture.save(tmp_path / "tape")
    if shutil.which("dot") is None:
        with pytest.raises(RuntimeError, match="needs the program `dot`"):
            picture.save(tmp_path / "tape.png")
    assert "boxes" in repr(picture)


def test_drawing_changes_nothing() -> None:
    loss, names = micrograd()
    autograd.draw(loss, names=names)
    loss.backward()
    assert names["a"].grad.item() == -24
