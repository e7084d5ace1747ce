"""MLCommons' own checkers, run on a copy in a child process; judged by what they say and by what they return."""

from mlevents.mlcommons.logs import check_log, check_logs, check_system
from mlevents.mlcommons.package import check_package
from mlevents.mlcommons.verdict import CheckStatus, OfficialVerdict, checker_version

__all__ = [
    "OfficialVerdict",
    "CheckStatus",
    "check_log",
    "check_logs",
    "check_package",
    "check_system",
    "checker_version",
]
