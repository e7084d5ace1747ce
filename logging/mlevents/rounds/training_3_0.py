"""MLPerf Training v3.0, ruleset 3.0.0: no named tensors; adds DLRM-DCNv2 and GPT-3, drops DLRM and Minigo."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_2_1
from mlevents.rounds.language_benchmarks import BERT, GPT3
from mlevents.rounds.recommendation_benchmarks import DLRM_DCNV2
from mlevents.rounds.ruleset import Repair, UpstreamDefect, next_round, once, replaced

# training_3.0.0/closed_*.yaml: weights_initialization and RNN-T's scale of it are no longer required.
WITHOUT: Final = (keys.WEIGHTS_INITIALIZATION, "model_weights_initialization_scale", "opt_epsilon")


def open_gpt3_missing(name: str) -> UpstreamDefect:
    """Return the defect of rulesets without open_gpt3.yaml; that of 4.0.0 has closed_gpt3.yaml's rules."""
    file = f"training_{name}/open_{{}}.yaml"
    return UpstreamDefect(
        rule="open-gpt3-missing",
        benchmark=GPT3.name,
        division=keys.OPEN,
        meaning="the ruleset has no open_gpt3.yaml, so that the checker stops with a traceback at every open GPT-3 log",
        source=f"training_{name} of mlperf-logging 4.1.68, and training_4.0.0/open_gpt3.yaml",
        repair=Repair(
            file=f"training_{name}/open_common.yaml",
            text=f"'{file}'.format(v['value'])",
            by=f"('training_4.0.0/open_{{}}.yaml' if v['value'] == 'gpt3' else '{file}').format(v['value'])",
        ),
    )


RULESET: Final = next_round(
    training_2_1.RULESET,
    "3.0.0",
    dropped=("dlrm", "minigo"),
    benchmarks=[
        *(
            replace(rules, closed_keys=replaced(rules.closed_keys, without=WITHOUT))
            for name, rules in training_2_1.RULESET.benchmarks.items()
            if name not in ("dlrm", "minigo")
        ),
        replace(BERT, closed_keys=replaced(BERT.closed_keys, once(keys.OPT_LAMB_EPSILON), without=WITHOUT)),
        DLRM_DCNV2,
        GPT3,
    ],
    defects=(open_gpt3_missing("3.0.0"),),
    last_month="2023-05",
)
