"""Run MLCommons' own checkers on a copy in a child process; their output and return values determine the verdict."""

from mlevents.mlcommons.checkers import check_log, check_logs, check_package
from mlevents.mlcommons.verdict import CheckStatus, OfficialVerdict, checker_version

__all__ = ["OfficialVerdict", "CheckStatus", "check_log", "check_logs", "check_package", "checker_version"]
