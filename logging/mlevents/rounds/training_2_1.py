"""MLPerf Training v2.1, ruleset 2.1.0: v2.0's rules, and a rule file for BERT that changed after the round."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_2_0
from mlevents.rounds.language_benchmarks import BERT
from mlevents.rounds.ruleset import Repair, RequiredKey, UpstreamDefect, next_round, once, replaced

EPSILON: Final = UpstreamDefect(
    rule="bert-epsilon-renamed",
    benchmark=keys.BERT,
    division=keys.CLOSED,
    meaning="the key opt_epsilon was renamed to opt_lamb_epsilon after the round, so that its published logs fail",
    source="mlcommons/logging issue 277; training_2.1.0/closed_bert.yaml of 22 November 2022",
    repair=Repair(file="training_2.1.0/closed_bert.yaml", text="opt_lamb_epsilon", by="opt_epsilon"),
    today=(once(keys.OPT_LAMB_EPSILON),),
)

RULESET: Final = next_round(
    training_2_0.RULESET,
    "2.1.0",
    benchmarks=[
        # The round's own name, or today's: both mean the same.
        replace(
            BERT,
            closed_keys=replaced(BERT.closed_keys, RequiredKey(key="opt_epsilon", alternative=keys.OPT_LAMB_EPSILON)),
        ),
    ],
    defects=(EPSILON,),
    last_month="2022-10",
)
