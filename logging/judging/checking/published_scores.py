"""Read published scores from the CSV files of MLCommons' result summarizer."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

from judging.ground.errors import UsageError
from judging.ground.result_files import read_text
from judging.scoring.run_set import SetName
from mlevents.event import short
from mlevents.rounds import BENCHMARK_DATASET

LONGEST: Final = 10**9  # minutes
EXPECTED: Final = "pass a file of mlperf_logging.result_summarizer --csv"


def read_published(files: Iterable[Path]) -> dict[SetName, Decimal]:
    """Read minutes by submitter, system and benchmark from files as `mlperf_logging.result_summarizer --csv` writes
    them, such as summary.csv in MLCommons' repositories of results, its detailed ones included.

    The folders of submitter and system are those of the column details_url if it has them, else the columns submitter
    and system. Raises UsageError if a file cannot be read, or is not such a table."""
    scores: dict[SetName, Decimal] = {}
    for file in files:
        try:
            lines = list(csv.reader(read_text(file).splitlines()))
        except (OSError, ValueError, csv.Error) as error:
            raise UsageError(f"{file}: cannot be read as CSV ({error}); {EXPECTED}.") from None
        header: list[str] = []
        for number, cells in enumerate(lines, start=1):
            if {"submitter", "system"} <= set(cells):  # repeated where the summarizer appended to the file
                header = [name.removesuffix(":time_to_train") for name in cells]
                continue
            row = dict(zip(header, cells, strict=False))
            link = re.search(r"/([^/]+)/systems/([^/]+)\.json$", row.get("details_url", ""))
            submitter, system = link.groups() if link else (row.get("submitter", ""), row.get("system", ""))
            for benchmark in BENCHMARK_DATASET.keys() & row.keys():
                if text := row[benchmark].strip():
                    try:
                        scores[submitter, system, benchmark] = minutes = Decimal(text)
                        if not 0 < minutes < LONGEST:  # NaN raises
                            raise InvalidOperation
                    except InvalidOperation:
                        message = f"{file}, line {number}: {benchmark} is {short(text)}, not a number of minutes"
                        raise UsageError(f"{message}; {EXPECTED}.") from None
        if not BENCHMARK_DATASET.keys() & set(header):
            raise UsageError(f"{file}: the columns submitter, system and a known benchmark are required; {EXPECTED}.")
    return scores
