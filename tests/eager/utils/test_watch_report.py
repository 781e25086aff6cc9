"""The page of `utils.watch` in a real browser, light and dark. Skipped where there is none."""

import re

import numpy as np
import pytest
import tapejit as tj
from support.browser import DARK, LIGHT, browse, needs_browser
from tapejit import nn
from tapejit.nn import functional as F

pytestmark = needs_browser

# Whatever reaches beyond its card or the window is named in the title.
MEASURE = """<script>
const out = [];
for (const picture of document.querySelectorAll("svg")) {
  const card = picture.getBoundingClientRect();
  for (const words of picture.querySelectorAll("text")) {
    const box = words.getBoundingClientRect();
    const inside = box.left >= card.left && box.right <= card.right && box.top >= card.top && box.bottom <= card.bottom;
    if (!inside) out.push(words.textContent);
  }
}
if (document.documentElement.scrollWidth > document.documentElement.clientWidth) out.push("the page");
document.title = `pictures ${document.querySelectorAll("svg").length}, outside: ${out.join(", ")}`;
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    tj.manual_seed(0)
    names = {"a_layer_with_a_rather_long_name_indeed": nn.Linear(8, 32), "tanh": nn.Tanh(), "relu": nn.ReLU()}
    model = nn.Sequential(nn.Sequential(*names.values()), nn.Linear(32, 4))
    for i, (name, layer) in enumerate(names.items()):
        del model[0]._modules[str(i)]
        model[0].add_module(name, layer)
    optimizer = tj.optim.SGD(model.parameters(), lr=2.0)
    seen = tj.utils.watch(model)
    x, y = tj.randn(32, 8), tj.randint(0, 4, (32,))
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("watch") / "page.html"
    seen.html(path)
    return path


@pytest.mark.parametrize(("look", "dark"), [(LIGHT, False), (DARK, True)], ids=["light", "dark"])
def test_colours_follow_the_reader_s_setting(page, tmp_path, look, dark):
    image = pytest.importorskip("matplotlib.image")
    picture = tmp_path / "page.png"
    browse(tmp_path, look, "--window-size=1300,1600", f"--screenshot={picture}", page.as_uri())
    pixels = image.imread(picture)[..., :3]
    grey = pixels.mean(-1)
    assert np.median(grey) < 0.15 if dark else np.median(grey) > 0.9
    ink = (grey > 0.7) if dark else (grey < 0.3)
    assert 0.001 < ink.mean() < 0.2  # there are words to read, in a colour that can be read
    colourful = (pixels.max(-1) - pixels.min(-1) > 0.35).mean()
    assert colourful > 0.005  # and histograms


@pytest.mark.parametrize("width", [1300, 520])
def test_everything_is_inside_its_card(page, tmp_path, width):
    measured = tmp_path / "measured.html"
    measured.write_text(page.read_text(encoding="utf-8").replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    out, _ = browse(tmp_path, f"--window-size={width},1600", "--dump-dom", measured.as_uri())
    found = re.search(r"<title>(.*?)</title>", out)
    assert re.fullmatch(r"pictures [4-9], outside: ", found[1]), found[1]
