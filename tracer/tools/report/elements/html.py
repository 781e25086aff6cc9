"""HTML from Python: `tag("td", text, class_="number")`. All text is escaped, except existing markup."""

from __future__ import annotations

import html
from typing import Any


class Markup(str):
    """Text that is already HTML or SVG."""

    __slots__ = ()


VOID = {"br", "hr", "link", "meta", "rect", "line", "path", "circle", "input"}


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Build an element. Attributes that are None or False are left out; `class_` is `class`, `data_x` is `data-x`."""
    given = "".join(attribute(k, v) for k, v in attributes.items() if v is not None and v is not False)
    if name in VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def attribute(name: str, value: Any) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(shown)}"'


def joined(children: Any) -> Markup:
    """Concatenate children; lists are flattened, None is skipped."""
    parts: list[str] = []
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (list, tuple)):
            parts.append(joined(child))
        else:
            parts.append(html.escape(str(child)))
    return Markup("".join(parts))


# ---- number formatting


def size(n: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.3g} {unit}" if n < 999.5 * factor else f"{n / factor:,.0f} {unit}"
    return f"{n:.0f} B"


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}" if seconds < 999.5 * factor else f"{seconds / factor:,.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def count(n: float) -> str:
    return (
        f"{n / 1e9:.3g} G" if n >= 1e9 else f"{n / 1e6:.3g} M" if n >= 1e6 else f"{n / 1e3:.3g} k" if n >= 1e4 else f"{n:,.0f}"
    )


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{share:.1%}"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"
