"""Draws the panels of a report side by side, as bar charts. The only module that needs matplotlib.

Highlighted subjects are coloured, all others grey; the first series of a panel is dark, the second light. So one legend
serves all panels. The output is reproducible: it contains no date, and its ids are not random.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

# Not installed in the environment of `make check`; installed, with types, in that of `make bench`.
import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]
from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
from matplotlib.legend_handler import HandlerTuple  # type: ignore[import-not-found, unused-ignore]
from matplotlib.patches import Patch  # type: ignore[import-not-found, unused-ignore]

from benchmarks import report
from benchmarks.measuring import Panel

HIGHLIGHTED: Final = ("#0b6e99", "#7fbfdd")
OTHERS: Final = ("#6b6b6b", "#bdbdbd")
"""Colours of the first and the second series: dark and light, distinguishable in print too."""

SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "acp-gateway",
    # Text instead of outlines is searchable and small.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}

WIDTH: Final = 6.4
"""Width of a panel, in inches."""

BAR: Final = 0.8
"""Part of a subject's space that its bars fill."""


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels of at most two series each into an SVG file, from left to right."""
    with mpl.rc_context(SETTINGS):
        most = max(len(_subjects(panel)) for panel in panels)
        # A white background, independent of the page.
        whole = Figure(figsize=(WIDTH * len(panels), 1.4 + 0.5 * most), facecolor="white", layout="constrained")
        for axes, panel in zip(whole.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel)
        _draw_legend(whole, panels)
        whole.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _subjects(panel: Panel) -> list[str]:
    """Return the subjects with at least one bar, in the order of the series."""
    names = (name for bars in panel.series.values() for name, value in bars.items() if value)
    return list(dict.fromkeys(names))


def _draw_panel(axes: Any, panel: Panel) -> None:
    subjects, high = _subjects(panel), BAR / len(panel.series)
    values = [value for bars in panel.series.values() for value in bars.values() if value]
    for number, bars in enumerate(panel.series.values()):
        present = [(row, name, value) for row, name in enumerate(subjects) if (value := bars.get(name))]
        positions = [row + (number + 0.5) * high - BAR / 2 for row, _, _ in present]
        colours = [(HIGHLIGHTED if name in panel.highlighted else OTHERS)[number] for _, name, _ in present]
        drawn = axes.barh(positions, [value for _, _, value in present], 0.92 * high, color=colours)
        axes.bar_label(drawn, [report.figure(value, panel.unit) for _, _, value in present], padding=3, fontsize=9)
    axes.set_yticks(range(len(subjects)), [panel.titles.get(name, name) for name in subjects])
    for label, name in zip(axes.get_yticklabels(), subjects, strict=True):
        if name in panel.highlighted:
            label.set(color=HIGHLIGHTED[0], fontweight="bold")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    # Leave space for the label behind the longest bar; on a logarithmic axis, give the shortest bar a visible length.
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
    """Draw one legend for all panels: the dark and the light series, by their names in each panel."""
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
