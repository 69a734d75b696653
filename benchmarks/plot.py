"""The plot: a panel next to the other, bars for each subject. Only here is matplotlib needed.

What a panel is about has a colour, and all else is grey; of the series of a panel the first one is dark, and the others
are lighter. So one legend below says it for all panels. The same results give the same bytes: no date, and ids that are
not by chance.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

# In the environment of `make check` it is not installed, in that of `make bench` it is, with types.
import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]
from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
from matplotlib.legend_handler import HandlerTuple  # type: ignore[import-not-found, unused-ignore]
from matplotlib.patches import Patch  # type: ignore[import-not-found, unused-ignore]

from benchmarks import report
from benchmarks.measuring import Panel

HIGHLIGHTED: Final = ("#0b6e99", "#7fbfdd")
OTHERS: Final = ("#6b6b6b", "#bdbdbd")
"""For the series, the first one and the second: dark and light, which is told apart in print too."""

SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "acp-gateway",
    # Text stays text: it can be searched, and is small.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}

WIDTH: Final = 6.4
"""Inches of a panel."""

BAR: Final = 0.8
"""How much of the room of a subject its bars take."""


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels, of two series at most, into an SVG file, from left to right."""
    with mpl.rc_context(SETTINGS):
        most = max(len(_subjects(panel)) for panel in panels)
        # White behind it, whatever the page has.
        whole = Figure(figsize=(WIDTH * len(panels), 1.4 + 0.5 * most), facecolor="white", layout="constrained")
        for axes, panel in zip(whole.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel)
        _draw_legend(whole, panels)
        whole.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _subjects(panel: Panel) -> list[str]:
    """Those with a bar at least, in the order in which the series name them."""
    there = (name for bars in panel.series.values() for name, value in bars.items() if value)
    return list(dict.fromkeys(there))


def _draw_panel(axes: Any, panel: Panel) -> None:
    subjects, high = _subjects(panel), BAR / len(panel.series)
    values = [value for bars in panel.series.values() for value in bars.values() if value]
    for number, bars in enumerate(panel.series.values()):
        there = [(place, name, value) for place, name in enumerate(subjects) if (value := bars.get(name))]
        places = [place + (number + 0.5) * high - BAR / 2 for place, _, _ in there]
        colours = [(HIGHLIGHTED if name in panel.highlighted else OTHERS)[number] for _, name, _ in there]
        drawn = axes.barh(places, [value for _, _, value in there], 0.92 * high, color=colours)
        axes.bar_label(drawn, [report.figure(value, panel.unit) for _, _, value in there], padding=3, fontsize=9)
    axes.set_yticks(range(len(subjects)), [panel.titles.get(name, name) for name in subjects])
    for label, name in zip(axes.get_yticklabels(), subjects, strict=True):
        if name in panel.highlighted:
            label.set(color=HIGHLIGHTED[0], fontweight="bold")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    # Room for what is written behind the longest bar; and no bar of a logarithmic panel has a length of nothing.
    if panel.logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, max(values) * (max(values) / min(values)) ** 0.25)
    else:
        axes.set_xlim(0, max(values) * 1.2)
    axes.xaxis.set_major_formatter(lambda value, _: report.figure(value, panel.unit))
    axes.minorticks_off()
    axes.set_title(panel.title, loc="left", fontweight="bold")
    axes.set_xlabel(panel.axis + (", logarithmic" if panel.logarithmic else ""))
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_legend(whole: Any, panels: Sequence[Panel]) -> None:
    """Dark and light, and what they are in each panel."""
    handles, labels = [], []
    for number, names in enumerate(zip_longest(*(panel.series for panel in panels))):
        handles.append((Patch(color=HIGHLIGHTED[number]), Patch(color=OTHERS[number])))
        labels.append(" · ".join(dict.fromkeys(name for name in names if name)))
    whole.legend(
        handles,
        labels,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
    )
