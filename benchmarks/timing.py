"""Times and tables of the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

console = Console()


def best(
    functions: dict[str, Callable[[], object]], repeats: int = 20, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The best time of each function; the functions take turns."""
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats + 1):  # the first turn warms up; being slower, it does not change the best time
        for name, function in functions.items():
            began = clock()
            function()
            times[name] = min(times[name], clock() - began)
    return times


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
