"""Read published scores from the tables of MLCommons' result summarizer."""

import csv
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

from judging.ground.errors import UsageError
from judging.ground.file_kind import read_text
from judging.scoring.run_set import SetName
from mlevents.event import json_fault, short
from mlevents.rounds import BENCHMARK_DATASET

LONGEST: Final = 10**9  # minutes
EXPECTED: Final = "pass a summary.csv of mlperf_logging.result_summarizer"
TIME: Final = ":time_to_train"  # ends the name of a benchmark's column since v5.0


def read_published(files: Iterable[Path]) -> dict[SetName, Decimal]:
    """Read minutes by submitter, system and benchmark from files as `mlperf_logging.result_summarizer` writes them,
    such as summary.csv in MLCommons' repositories of results, its detailed ones included.

    The folders of submitter and system are those of the column details_url if it has them, else the columns submitter
    and system. Raises UsageError if a file cannot be read, or is not such a table."""
    scores: dict[SetName, Decimal] = {}
    for file in files:
        known: set[str] = set()
        try:
            rows = list(_csv_rows(read_text(file)))
        except (OSError, ValueError, csv.Error) as error:
            raise UsageError(f"{file}: cannot be read as CSV ({json_fault(error)}); {EXPECTED}.") from None
        for place, row in rows:
            link = re.search(r"/([^/]+)/systems/([^/]+)\.json$", row.get("details_url", ""))
            submitter, system = link.groups() if link else (row.get("submitter", ""), row.get("system", ""))
            known |= BENCHMARK_DATASET.keys() & row.keys()
            for benchmark in BENCHMARK_DATASET.keys() & row.keys():
                if text := row[benchmark].strip():
                    try:
                        scores[submitter, system, benchmark] = minutes = Decimal(text)
                        if not 0 < minutes < LONGEST:  # NaN raises
                            raise InvalidOperation
                    except InvalidOperation:
                        message = f"{file}, {place}: {benchmark} is {short(text)}, not a number of minutes"
                        raise UsageError(f"{message}; {EXPECTED}.") from None
        if not known:
            raise UsageError(f"{file}: the columns submitter, system and a known benchmark are required; {EXPECTED}.")
    return scores


def _csv_rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each row; the header may be repeated where the summarizer appended."""
    header: list[str] = []
    for number, cells in enumerate(csv.reader(text.splitlines()), start=1):
        if {"submitter", "system"} <= set(cells):
            header = [name.removesuffix(TIME) for name in cells]
        else:
            yield f"line {number}", dict(zip(header, cells, strict=False))
