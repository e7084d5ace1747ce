"""`timedrun --completion` answers at TAB."""

import subprocess

from timedrun.commands.parser import VERBS

COMPLETE = """
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_timedrun 2>/dev/null
    echo "${COMPREPLY[@]}"
done
"""


def test_bash_completes_verbs_options_and_files_and_zsh_knows_every_verb(printed):
    offered = {"ra": "race", "score --target": "--target-test", "check READ": "README.md"}
    typed = "".join(f"timedrun {words}\n" for words in offered)
    command = ["bash", "-c", printed("--completion", "bash") + COMPLETE]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == list(offered.values()), done.stderr
    script = printed("--completion", "zsh")
    assert all(f"\n    {verb}:" in script for verbs in VERBS.values() for verb in verbs)
