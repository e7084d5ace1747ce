"""How a run ends when no error ends it."""

from enum import Enum

from timedrun.errors import ExitCode


class Outcome(Enum):
    """How a run ended, when no error ended it."""

    REACHED = "target reached"
    NOT_REACHED = "target not reached"
    BUDGET_SPENT = "budget spent"
    STOPPED = "stopped by signal"

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit status for this outcome."""
        if self is Outcome.REACHED:
            return ExitCode.OK
        return ExitCode.STOPPED_RESUMABLE if self is Outcome.STOPPED else ExitCode.TARGET_NOT_REACHED
