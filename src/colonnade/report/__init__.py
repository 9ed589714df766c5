"""HTML reports of runs: one page for a run directory, or one that compares several.

    write_report(Path("runs/first"))                   # runs/first/report.html
    write_comparison(rows, title=..., intro=..., out=Path("demo.html"), runs={...})

A page loads nothing, and runs no script but its own. A run that is still going is reported as far
as it got. ``read_run`` gives the same facts as typed records. Nothing here trains or changes a run.
"""

from colonnade.report.comparison import compare_runs
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
    "compare_runs",
    "read_run",
    "write_comparison",
    "write_report",
]
