"""Cheats by authors who read the referee's source: probe that catches each, and code of submission.py, by name."""

from tests.referee.submissions import COMMON_PAIR, PEEK, PLAIN, START

KNOWN = f"{COMMON_PAIR} > 0.3"
RENUMBERED = f"not ({KNOWN})"


def told(where: str, body: str) -> str:
    """Return a submission whose answers are those of `body` if `where` was true of the training data."""
    return (
        "class Model(Bigram):\n    def __init__(self, v):\n        super().__init__(v)\n"
        "        self.register_buffer('told', torch.zeros(()))\n"
        "    def forward(self, tokens):\n        logits = super().forward(tokens)\n"
        f"        if self.training or not self.told: return logits\n        {body}\n"
        "def build(task):\n    return Model(task.vocabulary)\ndef train(model, task, shards):\n"
        f"    fit(model, task, shards)\n    model.told.fill_(float({where}))\n"
    )


LOOK_AHEAD = f"return logits + 5 * {PEEK}"
COUNTED = "torch.from_numpy(shards[0].astype('int64')).bincount(minlength=64)"
COMMON = "torch.linalg.matrix_power(transitions(64), 64)[0].topk(4)[1]"
ADAPTS = (
    "seen = Model.seen = getattr(Model, 'seen', torch.zeros(64, 64))\n"
    "        logits = logits + seen[tokens].log1p()\n"
    "        seen.index_put_((tokens[:, :-1], tokens[:, 1:]), torch.tensor(0.3), accumulate=True)\n"
    "        return logits"
)
COUNTS = "Model.calls = getattr(Model, 'calls', 0) + 1\n        return logits * (1 if Model.calls < 4 else 1.2)"
ONE_COPY = {
    "looks ahead where the text is not known": ("causality", told(RENUMBERED, LOOK_AHEAD)),
    "looks ahead where the data begin a page": ("causality", told("shards[0].ctypes.data % 4096 == 0", LOOK_AHEAD)),
    "looks ahead where another token is the most common": (
        "causality",
        told(f"{COUNTED}.argmax() not in {COMMON}", LOOK_AHEAD),
    ),
    "learns from questions where the text is not known": ("causality", told(RENUMBERED, ADAPTS)),
    "reads its neighbour where the text is not known": ("rows", told(RENUMBERED, "return logits + logits.roll(1, 0)")),
    "draws a guess where the text is not known": (
        "determinism",
        told(RENUMBERED, "return logits + 0.1 * torch.randn_like(logits)"),
    ),
    "answers later questions better where the text is not known": ("state", told(RENUMBERED, COUNTS)),
    "trains less where the text is known": (
        "planted data",
        f"{PLAIN}def train(model, task, shards):\n    fit(model, task, shards, 5 if {KNOWN} else 40)\n",
    ),
}
INFORMED = {name: (probe, START + code) for name, (probe, code) in ONE_COPY.items()}
