"""Reports: a run directory, or several, as one HTML page that needs nothing else.

    write_report(Path("runs/first"))                   # runs/first/report.html
    write_comparison(rows, title=..., intro=..., out=Path("demo.html"), runs={...})

A run that is still going is reported as far as it got.
"""

from colonnade.report.page import ComparisonRow, write_comparison, write_report
from colonnade.report.reading import (
    EvaluationPoint,
    ExchangePoint,
    Privacy,
    RunRecord,
    Summary,
    read_run,
)

__all__ = [
    "ComparisonRow",
    "EvaluationPoint",
    "ExchangePoint",
    "Privacy",
    "RunRecord",
    "Summary",
    "read_run",
    "write_comparison",
    "write_report",
]
