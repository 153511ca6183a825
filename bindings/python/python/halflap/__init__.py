"""Hides communication behind compute in distributed tensor programs, without adding memory.

>>> result = halflap.schedule("graph.json", memory_budget="1.2x")
>>> print(result)            # what the command prints
>>> result.report().save("report.html")

Every function is a command of the same name, with the same options, the same result and the same
errors: ``halflap schedule --help`` has the long version. ``halflap.torch`` is for torch.compile.
"""

from ._api import (
    Analysis,
    Comparison,
    Graph,
    GraphLike,
    Order,
    Report,
    Schedule,
    Simulation,
    Sweep,
    analyze,
    emit_graph,
    emit_hlo,
    explain,
    report,
    schedule,
    simulate,
    timeline,
    verify,
    what_if,
)
from ._halflap import BadInput, Error, InternalError, NotValid, RunFailed, __version__

__all__ = [
    "Analysis",
    "BadInput",
    "Comparison",
    "Error",
    "Graph",
    "GraphLike",
    "InternalError",
    "NotValid",
    "Order",
    "Report",
    "RunFailed",
    "Schedule",
    "Simulation",
    "Sweep",
    "__version__",
    "analyze",
    "emit_graph",
    "emit_hlo",
    "explain",
    "report",
    "schedule",
    "simulate",
    "timeline",
    "verify",
    "what_if",
]
