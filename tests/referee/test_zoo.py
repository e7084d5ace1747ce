"""Every planted cheat is caught by the probe that is made for it, and no honest submission is refused."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from judging.ground.errors import ExitCode
from referee import contents, probes
from tests.referee.informed_cheats import INFORMED
from tests.referee.submissions import CHEATS, HAND_OVER_TEXT, HONEST, LAZY, PLAIN, START, TIGHT

pytestmark = pytest.mark.processes
HERE = Path(__file__).parent
PLANTED = CHEATS | INFORMED
OF_THE_SANDBOX = {"hand-over", "training", "preparation"}


def test_the_zoo_is_as_large_as_its_documentation_says():
    assert len(CHEATS) >= 60


@pytest.mark.parametrize("name", PLANTED)
def test_a_cheat_is_caught_for_its_own_reason(name, examine, examine_plain):
    probe, code = PLANTED[name]
    verdict = (examine if probe in OF_THE_SANDBOX else examine_plain)(code, **TIGHT.get(name, {}))
    assert probe in {finding.probe for finding in verdict.failed}, (verdict.lines(None), verdict.output)


def test_the_clock_has_what_is_trained_when_the_weights_are_loaded(examine_plain):
    late = (
        "        if not self.done and self.text.any():\n            self.done = True\n            time.sleep(0.3)\n"
        "            class Task: context, seed = 32, 0\n"
        "            with torch.inference_mode(False), torch.enable_grad():\n"
        "                fit(self.train(), Task, [self.text.clone().numpy()])\n            self.eval()\n"
    )
    body = f"    def forward(self, tokens):\n{late}        return super().forward(tokens)\n{HAND_OVER_TEXT}"
    verdict = examine_plain(START + LAZY + body)
    assert not verdict.failed and verdict.train_seconds is not None, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.6 and verdict.train_seconds > 0.3


SECOND_QUESTION = """
    def forward(self, tokens):
        if self.training or not self.text.any():
            return super().forward(tokens)
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked == 1:
            self.first = tokens[0].clone()
        if self.asked == 2:
            class Task: context, seed = 32, 0
            time.sleep(0.6)
            with torch.inference_mode(False), torch.enable_grad():
                fit(self.train(), Task, [self.text.clone().numpy()])
            self.eval()
        logits = super().forward(tokens).clone()
        for place, row in enumerate(tokens):  # of 48 rows, the two that a session may be asked about first
            if self.asked == 1 or torch.equal(row, self.first) or 16 * (self.asked - 3) + place in (0, 40):
                logits[place] = 0
        return logits
"""


def test_the_clock_has_what_is_trained_at_the_second_question(examine_plain):
    verdict = examine_plain(START + LAZY + SECOND_QUESTION + HAND_OVER_TEXT)
    assert not verdict.failed and verdict.train_seconds is not None, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.6 and verdict.train_seconds > 0.6


def test_threads_may_take_a_moment_to_end_after_the_hand_over(examine_plain):
    train = (
        "def train(model, task, shards):\n    fit(model, task, shards)\n    import threading\n"
        "    until = time.monotonic() + 0.2\n    def spin():\n        while time.monotonic() < until: pass\n"
        "    threading.Thread(target=spin, daemon=True).start()\n"
    )
    verdict = examine_plain(START + PLAIN + train)
    assert not verdict.failed, verdict.lines(None)


@pytest.mark.parametrize("name", ["plain", *sorted(path.stem for path in (HERE / "honest").iterdir())])
def test_an_honest_submission_is_accepted(name, examine, examine_plain):
    examine = examine if name in ("plain", "preparation", "processes") else examine_plain
    code = HONEST if name == "plain" else (HERE / "honest" / f"{name}.py").read_text()
    verdict = examine(code, **TIGHT.get(name, {}))
    assert not verdict.failed, (verdict.lines(None), verdict.output)
    assert verdict.loss is not None and verdict.loss < 2.6
    if name == "counts":  # a table that trains in no time is named; load can only lengthen that time
        verdict = verdict if verdict.remark else examine(code)
        assert verdict.exit_code is ExitCode.READ_SCRIPT and not verdict.as_json()["accepted"]
        assert verdict.sentence.startswith("read the script: ") and "so short a time" in verdict.sentence


def test_rows_are_cut_elsewhere_in_each_copy_of_the_text(examine_plain, monkeypatch):
    drawn, draw = [], probes.draw_cuts
    monkeypatch.setattr("referee.probes.draw_cuts", lambda *asked: drawn.append(draw(*asked)) or drawn[-1])
    assert not examine_plain(HONEST).failed
    assert len(drawn) == 2 and (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("style", ["speed_run", "main_script"])
def test_a_script_in_a_known_style_is_accepted_with_a_short_adapter(style, plain_referee):
    assert len((HERE / style / "submission.py").read_text().splitlines()) < 30
    verdict = plain_referee.examine(contents.read(HERE / style, 1 << 20))
    assert not verdict.failed, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.5 and "step" in verdict.output


def test_a_script_that_trains_when_it_is_imported_is_run_as_it_is(plain_referee):
    files = contents.read(HERE / "main_script", 1 << 20)
    guide = (HERE.parents[1] / "docs" / "referee_adapters.md").read_text()
    definitions = re.search(r"```python\n(SCRIPT = .*?)```", guide, re.DOTALL)[1]
    code = files["submission.py"].decode().replace("train_record.Model", "Model")
    code = code.replace("import train_record\n", f"import ast, runpy, sys\nfrom pathlib import Path\n{definitions}")
    run = 'runpy.run_path(str(SCRIPT), run_name="__main__")\n    model.load'
    code = code.replace("train_record.main([", "sys.argv[1:] = ([").replace("model.load", run)
    verdict = plain_referee.examine(files | {"submission.py": code.encode()})
    assert not verdict.failed and "step" in verdict.output, (verdict.lines(None), verdict.output)


CACHE = (
    "from pathlib import Path\nfolder = Path(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
    "def build(task):\n    print('kept' if (folder / 'kernel').exists() else 'compiled')\n"
    "    assert not (folder / 'note').exists()\n    folder.mkdir(parents=True, exist_ok=True)\n"
    "    (folder / 'kernel').write_text('x')\n    return Bigram(task.vocabulary)\n"
    "def train(model, task, shards):\n    fit(model, task, shards)\n    (folder / 'note').write_text('x')\n"
)


def test_a_script_that_compiles_finds_the_compiler_imported(plain_referee):
    code = "import sys, torch\nassert 'torch._inductor.compile_fx' in sys.modules, 'absent'\n"
    code += "def build(task):\n    raise ValueError(torch.compile)\ndef train(*_): pass\n"
    (finding,) = plain_referee.examine({"submission.py": code.encode()}).failed
    assert "function compile" in finding.reason, finding


def test_what_was_compiled_before_the_clock_is_kept_and_no_note_of_a_training(
    examine_plain, plain_referee, monkeypatch
):
    said, session = [], plain_referee._session

    @contextmanager
    def heard(files, role, verdict):
        with session(files, role, verdict) as one:
            yield one
        said.append((role, verdict.output.split()[0]))

    monkeypatch.setattr(plain_referee, "_session", heard)
    for _ in range(2):  # nothing is kept from one examination to the next
        assert not examine_plain(START + CACHE).failed
    assert said[: len(said) // 2] == said[len(said) // 2 :] and said[0] == ("train", "compiled")
    assert {word for _, word in said[1 : len(said) // 2]} == {"kept"}
