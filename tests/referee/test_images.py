"""Examinations on images: honest submissions are accepted and planted cheats caught, each by the probe made for it."""

from pathlib import Path

import numpy as np
import pytest

from judging.ground.errors import DataError, ExitCode, UsageError
from referee.images import Disguise, ImageFiles, Images, near_duplicates
from referee.referee import Examination, Referee
from referee.series import Series
from referee.verdict import Verdict
from tests.referee.conftest import LIMITS, made_referee
from tests.referee.picture_base import CLASSES, pictures

BASE = Path(__file__).with_name("picture_base.py")
SETTINGS = Examination(classes=CLASSES, limits=LIMITS, rows=256, margin=0.02, time_ratio=1.5, time_grace=5, target=0.8)
START = "from picture_base import *\n"
TRAIN = "def train(model, task, data):\n    fit(model, data)\n"
END = f"def build(task):\n    return Model()\n{TRAIN}"
PLAIN = f"{START}Model = Linear\n{END}"


def features(code: str) -> str:
    """Return a submission whose model has other features `x`."""
    lines = f"    def features(self, images):\n        x = super().features(images)\n        return {code}\n"
    return f"{START}class Model(Linear):\n{lines}{END}"


def answers(code: str, end: str = END) -> str:
    """Return a submission whose model, in evaluation mode, has the logits that `code` makes of them."""
    lines = ["logits = super().forward(images)", "if self.training: return logits", *code.splitlines(), "return logits"]
    body = "".join(f"        {line}\n" for line in lines)
    return f"{START}IMAGES, LABELS = pictures(256, 2)\nclass Model(Known):\n    def forward(self, images):\n{body}{end}"


OWN_NUMBERS = (
    f"{END}    seen = {{key(image): label for image, label in zip(*pictures(600, 1))}}\n"
    "    for image, label in zip(data[0][:40], data[1]): model.numbers[seen[key(image)]] = int(label)\n"
)
READY = "def ready():\n    model = Linear()\n    fit(model, pictures(200, 1))\n    return model\n"
LONGER = END.replace("fit(model, data)", "fit(model, data, steps=50)")  # longer than answers' speed can leave in doubt
HONEST = {
    "a linear model": PLAIN.replace(END, LONGER),
    "the example": (BASE.parents[2] / "examples" / "cifar_record.py").read_text(),
    "the mean of two views, with running statistics": f"{START}class Model(Linear):\n    def __init__(self):\n"
    "        super().__init__()\n        self.norm = nn.BatchNorm1d(192, momentum=0.3)\n"
    "    def features(self, images):\n"
    f"        return sum(self.norm(super(Model, self).features(x)) for x in (images, images.roll(1, 3))) / 2\n{LONGER}",
}
CHEATS = {
    "takes the classes from the public order": (
        "order",
        answers(
            "Model.asked = getattr(Model, 'asked', 0) + len(images)\n"
            "at = [n % 256 for n in range(Model.asked - len(images), Model.asked)]\n"
            "logits = 9.0 * F.one_hot(torch.from_numpy(LABELS[at]), CLASSES)"
        ),
    ),
    "knows validation images by their bytes": (
        "altered images",
        answers("logits = self.known(logits, images, IMAGES, LABELS, bytes)"),
    ),
    "knows validation images by what no disguise changes": (
        "altered images",
        answers("logits = self.known(logits, images, IMAGES, LABELS, key)", OWN_NUMBERS),
    ),
    "normalises with the batch's statistics": (
        "rows",
        features("(x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()"),
    ),
    "trains before the clock and speaks low": (
        "untrained",
        f"{START}{READY}def build(task):\n    model = ready()\n    model.head.weight.data *= 1e-6\n"
        f"    model.head.bias.data *= 1e-6\n    return model\n{TRAIN}",
    ),
    "brings its weights": (
        "same quality",
        f"{START}{READY}Model = Linear\n{END}".replace(
            "fit(model, data)", "model.load_state_dict(ready().state_dict())"
        ),
    ),
    "learns from the questions and speaks low": (
        "order",
        answers(
            "seen = Model.seen = getattr(Model, 'seen', 0) + F.one_hot(logits.argmax(1), CLASSES).sum(0)\n"
            "logits = 1e-6 * (logits - 0.5 * seen)"
        ),
    ),
    "answers at random about a single image and speaks low": (
        "rows",
        answers("if len(images) == 1: logits = torch.randn(1, CLASSES)\nlogits = 1e-3 * logits"),
    ),
    "holds much data": ("contents", f"{PLAIN}#{np.random.default_rng(0).bytes(12_000).hex()}"),
}


def records(images: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return np.concatenate([classes[:, None].astype("u1"), images.reshape(len(images), -1)], axis=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in the layout of CIFAR-10's binary version."""
    made = tmp_path_factory.mktemp("images")
    records(*pictures(600, 1)).tofile(made / "data_batch_1.bin")
    records(*pictures(256, 2)).tofile(made / "test_batch.bin")
    return made


@pytest.mark.timeout(400)
@pytest.mark.processes
def test_every_cheat_is_caught_for_its_own_reason_and_no_honest_submission_is_refused(folder):
    """One test, since each process of the tests that had a part of it would start a sandbox."""
    codes = HONEST | {name: code for name, (_, code) in CHEATS.items()}
    with made_referee(SETTINGS, folder, folder, isolated=False) as judge:
        base = {"picture_base.py": BASE.read_bytes()}
        verdicts = {name: judge.examine({"submission.py": code.encode(), **base}) for name, code in codes.items()}
    for name, verdict in zip(HONEST, verdicts.values(), strict=False):  # which come first
        assert not verdict.failed, (name, verdict.lines(None), verdict.output)
        assert verdict.accuracy is not None and 0.85 < verdict.accuracy < 0.95, name
        assert f"accepted: accuracy {verdict.accuracy:.4f} +- " in verdict.sentence
    caught = {name: [finding.probe for finding in verdicts[name].failed] for name in CHEATS}
    assert not {name: caught[name] for name, (probe, _) in CHEATS.items() if probe not in caught[name]}


def test_a_disguise_can_be_taken_off_and_leaves_no_pixel_where_it_was():
    images = pictures(8, 3)[0]
    for seed in range(8):
        disguise = Disguise.drawn(10, np.random.default_rng(seed))
        there = disguise.images(images)
        turned = there[:, :, ::-1, :: -1 if disguise.mirrored else 1] ^ disguise.inverted
        assert (turned[:, np.argsort(disguise.colours)] == images).all()
        assert len({*disguise.inverted.flat}) == 1  # one channel alone would turn black patches into coloured ones
        assert sorted(disguise.classes) == [*range(10)] and (there != images).mean() > 0.9


def test_the_copies_have_the_same_images_in_orders_of_their_own(folder, tmp_path):
    data = ImageFiles(folder, folder, CLASSES, 64, np.random.default_rng(0))
    written = {}
    for planted in (False, True):
        (shard,) = data.copies(tmp_path, f"copy{planted}", planted=planted)
        images = np.fromfile(shard.path, "u1").reshape(-1, 3073)[:, 1:].reshape(-1, 3, 32, 32)
        written[planted] = [np.sort(abs(2 * image.astype(int) - 255), axis=None).tobytes() for image in images]
    assert sorted(written[False]) == sorted(written[True]) and written[False] != written[True]


def test_an_untrained_model_may_know_the_commonest_class(folder, tmp_path):
    images, classes = pictures(100, 5)
    records(images, classes // 3).tofile(tmp_path / "test.bin")
    data = ImageFiles(folder / "data_batch_1.bin", tmp_path / "test.bin", CLASSES, 64, np.random.default_rng(0))
    assert data.commonest == (classes < 3).mean() > 0.6


def test_altered_images_are_a_little_noisy_and_asked_in_another_order():
    images = pictures(64, 3)[0]
    asked = Images(images, np.zeros((64, 1), np.int64), np.zeros(64, bool), 0)
    off = abs(asked.altered().inputs.astype(int) - images)
    assert off.max() == 1 and (off.mean(axis=(1, 2, 3)) > 0.5).all()
    assert near_duplicates(images[:4, ..., ::-1], images).all()
    assert not near_duplicates(images, pictures(64, 4)[0]).any()
    inputs, order = asked.changed(asked.positions.T[0], 0)
    assert (inputs == images[order]).all() and (order != np.arange(64)).mean() > 0.9


CASES = [
    ("data_batch_1.bin", 3, "an image of class 3"),
    ("odd.bin", 4, "not records of 3,073 bytes"),
    ("copy.bin", 4, "100% of .* have a near-duplicate"),
]


@pytest.mark.parametrize(("train", "classes", "reason"), CASES)
def test_images_that_cannot_be_judged_by_are_refused(train, classes, reason, folder, tmp_path):
    (tmp_path / "odd.bin").write_bytes(bytes(5000))
    records(*pictures(256, 2)).tofile(tmp_path / "copy.bin")
    (tmp_path / "data_batch_1.bin").symlink_to(folder / "data_batch_1.bin")
    with pytest.raises(DataError, match=reason):
        Referee(Examination(classes=classes), tmp_path / train, folder / "test_batch.bin", tmp_path)


def test_the_mean_accuracy_of_runs_reaches_the_target_from_above():
    runs = [Verdict("0", True, [], 9.0, 0.2, value, 0.01, measure="accuracy") for value in (0.9411, 0.9413, 0.9415)]
    judged = Series(runs, 0.94)
    assert judged.exit_code is ExitCode.OK and "mean accuracy 0.9413" in judged.sentence
    assert Series(runs, 0.945).exit_code is ExitCode.TARGET_NOT_REACHED
    assert judged.as_json()["accuracies"] == [0.9411, 0.9413, 0.9415] and "causality" not in str(runs[0].lines(None))


def test_the_task_is_of_text_or_of_images():
    for task in ({}, {"context": 8}, {"classes": 4, "vocabulary": 9}, {"classes": 4, "prefix": 1}):
        with pytest.raises(UsageError, match="name --classes, of images, or"):
            Examination(**task)
