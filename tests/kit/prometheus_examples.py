"""The files of examples/prometheus, read without a YAML library, and as much of PromQL as they use."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[2] / "examples" / "prometheus"

FUNCTIONS: Final = frozenset({"sum", "max", "rate", "increase", "histogram_quantile"})
"""Those of PromQL that the examples use."""

TARGET_LABELS: Final = frozenset({"instance", "job"})
"""Labels that Prometheus adds to each series."""

_SELECTOR: Final = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING: Final = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """An expression: the series that it selects, and the labels of its result."""

    text: str
    selectors: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]
    """Name of each series, with label, operator and value of its matchers."""
    grouping: frozenset[str] | None
    """Labels that the outermost aggregation keeps; None without one."""

    @property
    def names(self) -> set[str]:
        """Names of the series."""
        return {name for name, _ in self.selectors}


def parse(text: str) -> Query:
    """Read an expression of the examples. Raises `ValueError` for one with a function that is not known here."""
    groupings = _GROUPING.findall(text)
    rest = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub("", text))
    selectors = []
    for name, matchers in _SELECTOR.findall(rest):
        if re.search(rf"\b{name}\s*\(", rest):
            if name not in FUNCTIONS:
                raise ValueError(f"{name} is not a function of the examples: {text}")
            continue
        selectors.append((name, tuple(_MATCHER.findall(matchers))))
    aggregates = re.search(r"\b(?:sum|max)\b", rest) is not None
    grouping = None
    if aggregates:
        # That of a histogram is consumed with its buckets.
        kept = {label.strip() for label in groupings[0].split(",")} if groupings else set()
        grouping = frozenset(kept - ({"le"} if "histogram_quantile" in rest else set()))
    return Query(text, tuple(selectors), grouping)


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    content: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return content


def dashboard_queries() -> list[tuple[str, Query, str]]:
    """Return the title of the panel, the expression and the legend of each query of the dashboard."""
    targets = [(panel["title"], target) for panel in dashboard()["panels"] for target in panel["targets"]]
    return [(title, parse(target["expr"]), target["legendFormat"]) for title, target in targets]


@dataclass(frozen=True)
class Alert:
    """A rule of rules.yml."""

    name: str
    query: Query
    severity: str
    annotations: str


def alerts() -> list[Alert]:
    """Return the alerts."""
    found = []
    for block in re.split(r"^      - alert: ", (FOLDER / "rules.yml").read_text(), flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        expression = re.search(r"^        expr: (?:>-\n +)?(.+)$", body, re.MULTILINE)
        severity = re.search(r"^          severity: (\w+)$", body, re.MULTILINE)
        assert expression is not None, name
        assert severity is not None, name
        found.append(Alert(name, parse(expression[1]), severity[1], body.partition("annotations:\n")[2]))
    return found
