"""Known errors in rule files of MLCommons' checker, each by the round whose rule file has it."""

from typing import Final

from mlevents import keys
from mlevents.rounds.constraint import within
from mlevents.rounds.language_benchmarks import GPT3, LLAMA2_70B_LORA, LLAMA31_8B
from mlevents.rounds.required import evaluation, named, once
from mlevents.rounds.ruleset import BenchmarkRules, Repair, UpstreamDefect

# Open rule files from 4.0 to 5.1 require epochs of benchmarks that count samples.
EPOCHS: Final = "'epoch_num' in v['metadata']"
EPOCHS_OR_SAMPLES: Final = "('epoch_num' in v['metadata']) | ('samples_count' in v['metadata'])"

BERT_EPSILON_RENAMED: Final = UpstreamDefect(
    *("bert-epsilon-renamed", keys.BERT, keys.CLOSED),
    meaning="the key opt_epsilon was renamed to opt_lamb_epsilon after the round, so that its published logs fail",
    source="mlcommons/logging issue 277; training_2.1.0/closed_bert.yaml of 22 November 2022",
    repair=Repair(file="training_2.1.0/closed_bert.yaml", text="opt_lamb_epsilon", by="opt_epsilon"),
    today=(once(keys.OPT_LAMB_EPSILON),),
)


def open_gpt3_missing(name: str) -> UpstreamDefect:
    """Return the defect of rulesets without open_gpt3.yaml; that of 4.0.0 has closed_gpt3.yaml's rules."""
    file = f"training_{name}/open_{{}}.yaml"
    return UpstreamDefect(
        *("open-gpt3-missing", GPT3.name, keys.OPEN),
        meaning="the ruleset has no open_gpt3.yaml, so that the checker stops with a traceback at every open GPT-3 log",
        source=f"training_{name} of mlperf-logging 4.1.68, and training_4.0.0/open_gpt3.yaml",
        repair=Repair(
            file=f"training_{name}/open_common.yaml",
            text=f"'{file}'.format(v['value'])",
            by=f"('training_4.0.0/open_{{}}.yaml' if v['value'] == 'gpt3' else '{file}').format(v['value'])",
        ),
    )


def open_counts_epochs(name: str, rules: BenchmarkRules) -> UpstreamDefect:
    """Return the defect of open rule files that require epoch_num, which no log of the benchmark's reference has."""
    return UpstreamDefect(
        *("open-counts-epochs", rules.name, keys.OPEN),
        meaning="the open rule file requires epoch_num of every eval_accuracy, but the benchmark counts samples_count",
        source=f"training_{name}/open_{rules.name}.yaml versus closed_{rules.name}.yaml; fixed in 6.0.0 by "
        "mlcommons/logging pull request 461",
        repair=Repair(file=f"training_{name}/open_{rules.name}.yaml", text=EPOCHS, by=EPOCHS_OR_SAMPLES),
        today=(evaluation(),),
    )


def open_lora_unlisted(name: str, listed: tuple[str, ...]) -> UpstreamDefect:
    """Return the defect of an open_common.yaml that omits a benchmark with an open rule file, the last of `listed`."""
    return UpstreamDefect(
        *("open-lora-unlisted", LLAMA2_70B_LORA.name, keys.OPEN),
        meaning="open_common.yaml does not list llama2_70b_lora, though the ruleset has an open_llama2_70b_lora.yaml",
        source=f"training_{name}/open_common.yaml versus closed_common.yaml",
        repair=Repair(file=f"training_{name}/open_common.yaml", text="'gnn']", by="'gnn', 'llama2_70b_lora']"),
        today=(named(keys.SUBMISSION_BENCHMARK, *listed[:-1]),),
    )


def open_8b_unpassable(name: str, progress: str = keys.SAMPLES_COUNT) -> UpstreamDefect:
    """Return the defect of an open rule for accuracies that was kept for a log perplexity with target 3.3.

    A rule file whose `progress` is epochs has that error, too, so the repair of both is one."""
    text, by = "v['value'] < 1.0", "v['value'] > 0.0"
    if progress == keys.EPOCH_NUM:
        next_check = '"\n    ATLEAST_ONE_CHECK: "'
        text, by = f'{EPOCHS}{next_check}{text}"', f'{EPOCHS_OR_SAMPLES}{next_check}{by}"'
    return UpstreamDefect(
        *("open-llama31-8b-unpassable", LLAMA31_8B.name, keys.OPEN),
        meaning="the open rule file requires an eval_accuracy below 1.0, but the metric is a log perplexity whose "
        "target is 3.3, so that no real log passes",
        source=f"training_{name}/open_llama31_8b.yaml versus closed_llama31_8b.yaml; no issue reports it",
        repair=Repair(file=f"training_{name}/open_llama31_8b.yaml", text=text, by=by),
        today=(evaluation(within(below=1.0), progress=progress),),
    )
