"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, where = document) => [...where.querySelectorAll(selector)];

  // ---- light or dark: what the reader's system says, until it is switched here
  const kept = { get: () => { try { return localStorage.getItem("tapejit-theme"); } catch { return null; } },
                 set: (x) => { try { localStorage.setItem("tapejit-theme", x); } catch { /* a page from a file may have no storage */ } } };
  if (kept.get()) root.dataset.theme = kept.get();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    kept.set(root.dataset.theme);
  });

  // ---- what belongs together: lines, rows of the trace, kernels
  const words = (text) => (text ? text.split(" ") : []);
  const is = new Map(), of = new Map(), ends = new Map();
  const note = (map, word, element) => { if (!map.has(word)) map.set(word, []); map.get(word).push(element); };
  for (const e of all("[data-is], [data-of]")) {
    words(e.dataset.is).forEach((w) => note(is, w, e));
    words(e.dataset.of).forEach((w) => note(of, w, e));
  }
  for (const e of all("[data-with]")) words(e.dataset.with).forEach((w) => note(ends, w, e));
  const relatives = (e) => {
    const found = new Set([e]);
    for (const w of words(e.dataset.is)) for (const map of [is, of, ends]) (map.get(w) || []).forEach((x) => found.add(x));
    for (const w of words(e.dataset.of)) (is.get(w) || []).forEach((x) => found.add(x));
    return found;
  };
  let lit = [];
  const light = (e) => {
    lit.forEach((x) => x.classList.remove("lit"));
    lit = e ? [...relatives(e)] : [];
    lit.forEach((x) => x.classList.add("lit"));
  };
  const marked = (target) => target.closest && target.closest("[data-is], [data-of]");
  document.addEventListener("mouseover", (event) => light(marked(event.target)));
  document.addEventListener("focusin", (event) => { if (marked(event.target)) light(marked(event.target)); });

  // ---- going there
  const within = (pane, row) => {
    if (row.offsetParent === null) return;
    const box = pane.getBoundingClientRect(), at = row.getBoundingClientRect();
    if (at.top < box.top + 40 || at.bottom > box.bottom - 10) pane.scrollTop += at.top - box.top - box.height / 3;
  };
  const follow = (e) => {
    for (const pane of all(".pane")) {
      if (pane.contains(e)) continue;
      const row = [...relatives(e)].find((x) => pane.contains(x));
      if (row) within(pane, row);
    }
  };
  const reveal = (e) => {
    for (let x = e; x; x = x.parentElement) {
      if (x.tagName === "DETAILS") { x.open = true; x.hidden = false; }
      if (x.dataset && x.dataset.value && x.hidden) choose(x.parentElement.dataset.choices, x.dataset.value);
    }
    e.scrollIntoView({ block: "center" });
    light(marked(e) || e.querySelector("[data-is]"));
    follow(marked(e) || e.querySelector("[data-is]") || e);
  };
  const go = (target, event) => {
    const jump = target.closest("[data-go]");
    if (jump) { const there = document.getElementById(jump.dataset.go); if (there) reveal(there); return; }
    const link = target.closest("a[href^='#']");
    if (link) {
      const name = link.getAttribute("href").slice(1);
      const there = document.getElementById(name) || (is.get(name) || []).find((x) => x.classList.contains("row"));
      if (there && (link.classList.contains("place") || there.tagName === "DETAILS")) { event.preventDefault(); reveal(there); }
      return;
    }
    const row = target.closest(".row.live");
    if (row) { light(row); follow(row); }
  };
  let dragged = false;
  document.addEventListener("click", (event) => { if (!dragged) go(event.target, event); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.closest(".row.live")) go(event.target, event);
    if (event.key === "Escape") light(null);
  });

  // ---- one of several: all lists of a name change together
  const choose = (name, value) => {
    for (const place of all(`[data-choices="${name}"]`)) {
      const each = [...place.children].filter((x) => x.dataset.value);
      if (!each.some((x) => x.dataset.value === value)) continue;
      each.forEach((x) => { x.hidden = x.dataset.value !== value; });
      place.querySelector("select").value = value;
    }
    all(".drawing").forEach((x) => { if (!x.dataset.fitted) fit(x); });
  };

  // ---- graphs: zoom by buttons or Ctrl and wheel, move by dragging
  const canvas = (drawing) => all(".canvas", drawing).find((x) => !x.hidden);
  const scale = (box, factor, x = box.clientWidth / 2, y = box.clientHeight / 2) => {
    const picture = box.firstElementChild;
    const now = picture.clientWidth || picture.getBoundingClientRect().width;
    const natural = picture.viewBox.baseVal.width;
    const wanted = Math.min(Math.max(now * factor, natural * 0.08), natural * 4);
    const left = (box.scrollLeft + x) * (wanted / now) - x, top = (box.scrollTop + y) * (wanted / now) - y;
    picture.setAttribute("width", wanted);
    picture.setAttribute("height", (wanted / natural) * picture.viewBox.baseVal.height);
    box.scrollLeft = left;
    box.scrollTop = top;
  };
  function fit(drawing) {
    const box = canvas(drawing), picture = box.firstElementChild;
    if (!box.clientWidth) return;
    drawing.dataset.fitted = "yes";
    const scale = Math.max(Math.min((box.clientWidth - 4) / picture.viewBox.baseVal.width, 1.15), 0.7);
    picture.setAttribute("width", picture.viewBox.baseVal.width * scale);
    picture.setAttribute("height", picture.viewBox.baseVal.height * scale);
    box.scrollTop = 0;
    box.scrollLeft = (picture.viewBox.baseVal.width * scale - box.clientWidth) / 2;
  }
  for (const list of all("[data-choose]")) {
    list.addEventListener("change", () => choose(list.dataset.choose, list.value));
    choose(list.dataset.choose, list.options[0].value);
  }
  for (const drawing of all(".drawing")) {
    if (!drawing.dataset.fitted) fit(drawing);
    all("[data-zoom]", drawing).forEach((button) => button.addEventListener("click", () => {
      if (button.dataset.zoom === "fit") fit(drawing);
      else scale(canvas(drawing), button.dataset.zoom === "in" ? 1.25 : 0.8);
    }));
    all("[data-full]", drawing).forEach((box) => box.addEventListener("change", () => {
      all(".canvas", drawing).forEach((x, i) => { x.hidden = (i === 1) !== box.checked; });
      fit(drawing);
    }));
    for (const box of all(".canvas", drawing)) {
      box.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        const at = box.getBoundingClientRect();
        scale(box, event.deltaY < 0 ? 1.12 : 0.89, event.clientX - at.left, event.clientY - at.top);
      }, { passive: false });
      let from = null;
      box.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse" && event.button === 0) from = [event.clientX, event.clientY, box.scrollLeft, box.scrollTop];
        dragged = false;
      });
      addEventListener("pointermove", (event) => {
        if (!from) return;
        if (Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 4) { dragged = true; box.classList.add("held"); }
        if (dragged) { box.scrollLeft = from[2] - event.clientX + from[0]; box.scrollTop = from[3] - event.clientY + from[1]; }
      });
      addEventListener("pointerup", () => { from = null; box.classList.remove("held"); setTimeout(() => { dragged = false; }); });
    }
  }

  // ---- tables of many kernels: by time or in their order, and those with some words
  for (const table of all(".kernels")) {
    const search = table.querySelector("[data-search]"), order = table.querySelector("[data-order]");
    if (!search) continue;
    const more = table.querySelector(".more"), rows = all(".kernel-row", table), places = rows.map((x) => x.parentElement);
    const text = new Map(rows.map((x) => [x, ""]));
    const arrange = () => {
      const wanted = search.value.trim().toLowerCase(), flat = order.checked || wanted !== "";
      const sorted = order.checked ? [...rows].sort((a, b) => a.dataset.step - b.dataset.step) : rows;
      for (const row of sorted) {
        if (wanted && !text.get(row)) text.set(row, (row.firstElementChild.textContent + row.querySelector("dl").textContent).toLowerCase());
        row.hidden = !text.get(row).includes(wanted);
        if (flat || places[rows.indexOf(row)] === table) table.insertBefore(row, more);
        else more.append(row);
      }
      more.hidden = flat;
    };
    search.addEventListener("input", arrange);
    order.addEventListener("change", arrange);
  }

  // ---- where in the page
  const links = new Map(all("nav a").map((a) => [a.getAttribute("href").slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((a) => a.classList.remove("here"));
      links.get(entry.target.id)?.classList.add("here");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("section.part").forEach((x) => seen.observe(x));
  root.dataset.ready = "yes";
})();
