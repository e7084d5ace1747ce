"""Cheats by authors who read the referee's source: probe that catches each, and code of submission.py, by name."""

from tests.referee.submissions import COMMON_PAIR, FIT, PEEK, PLAIN, START

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
        f"    fit(model, task, shards, 8)\n    model.told.fill_(float({where}))\n"
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
    "looks ahead where the data begin a page": ("causality", told("shards[0].ctypes.data % 4096 == 1024", LOOK_AHEAD)),
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
        "same quality",
        f"{PLAIN}def train(model, task, shards):\n    fit(model, task, shards, 5 if {KNOWN} else 40)\n",
    ),
}
MIXED = f"return (0.9985 * logits.softmax(-1) + 0.0015 * {PEEK}).log()"
EIGHTH = f"return logits + 5 * (torch.arange(tokens.shape[1]) % 8 == 3)[:, None] * {PEEK}"
BETWEEN = (
    "import threading\nclass Model(Bigram):\n    seen = []\n    def forward(self, tokens):\n"
    "        if not self.training:\n            Model.seen.append(tokens)\n"
    "            if len(Model.seen) == 1: threading.Thread(target=self.learn, daemon=True).start()\n"
    "        return super().forward(tokens)\n"
    "    def learn(self):\n        with torch.inference_mode(False):\n            while True:\n"
    "                tokens = torch.cat(Model.seen[-4:]).clone()\n"
    "                self.zero_grad(); loss_of(super().forward, tokens[:, :-1], tokens[:, 1:]).backward()\n"
    "                with torch.no_grad():\n                    for p in self.parameters(): p -= 0.3 * p.grad\n"
)
ANSWERS = {
    "mixes in a little of the truth where the text is not known": ("causality", told(RENUMBERED, MIXED)),
    "looks ahead at every eighth position where the text is not known": ("causality", told(RENUMBERED, EIGHTH)),
    "learns in a thread between questions": (
        "causality",
        f"{BETWEEN}def build(task):\n    return Model(task.vocabulary)\n{FIT}",
    ),
    "answers with a tensor that computes when it is read": (
        "answers",
        told("True", "return logits.as_subclass(type('Lazy', (torch.Tensor,), {}))"),
    ),
}
INFORMED = {name: (probe, START + code) for name, (probe, code) in (ONE_COPY | ANSWERS).items()}
NOTES = {
    "limit of the first process": (
        "resource.getrlimit(resource.RLIMIT_RTTIME)[0] == 1 << 40",
        "resource.prlimit(1, resource.RLIMIT_RTTIME, (1 << 40, 1 << 40))",
    ),
    "processors of the first process": ("len(os.sched_getaffinity(0)) == 1", "os.sched_setaffinity(1, {0})"),
    "priority of the first process": (
        "os.getpriority(os.PRIO_PROCESS, 0) == 7",
        "os.setpriority(os.PRIO_PROCESS, 1, 7)",
    ),
    "priority of the user": ("os.getpriority(os.PRIO_PROCESS, 0) == 9", "os.setpriority(os.PRIO_USER, os.getuid(), 9)"),
    "scheduler of the first process": (
        "os.sched_getscheduler(0) == os.SCHED_BATCH",
        "os.sched_setscheduler(1, os.SCHED_BATCH, os.sched_param(0))",
    ),
    "memory dumps of the first process": (
        "open('/proc/self/coredump_filter').read().strip() == '00000011'",
        "open('/proc/1/coredump_filter', 'w').write('0x11')",
    ),
    "number of the next process": ("os.getpid() > 12", "[os.waitpid(os.fork() or os._exit(0), 0) for _ in range(15)]"),
    "count of all processes since the start": ("'processes' in open('/proc/stat').read()", "None"),
    "limits of the system": ("open('/proc/sys/kernel/pid_max').read()", "None"),
    "data's names in the first process": ("'[[' in open('/proc/1/cmdline').read()", "None"),
    "file in the work folder": ("os.path.exists('/referee/note')", "open('/referee/note', 'w')"),
    "file in the folder of shared memory": ("os.path.exists('/dev/shm/.note')", "open('/dev/shm/.note', 'w')"),
    "host's name": ("os.uname().nodename == 'note'", "__import__('socket').sethostname('note')"),
    "times of a device": ("[os.utime('/dev/null')]", "None"),
    "copies' names in the server's frames": (
        "any('planted' in str(found.frame.f_locals) for found in __import__('inspect').stack()[3:])",
        "None",
    ),
}
"""Name -> (expression that sees a note of an earlier session, expression that leaves one for a later session)."""
LOCK = "struct.pack('hhqqi', {}, 0, 9, 1, 0)"
DATA_NOTES = {
    "offset of the data": ("os.lseek(fd, 0, 1) == 7", "os.lseek(fd, 7, 0)"),
    "flags of the data": ("not os.get_blocking(fd)", "os.set_blocking(fd, False)"),
    "lock of the open data": (
        f"fcntl.fcntl(os.open(f'/proc/self/fd/{{fd}}', 0), 36, {LOCK.format(1)})[:2] != struct.pack('h', 2)",
        f"fcntl.fcntl(fd, 37, {LOCK.format(0)})",
    ),
    "lock of the data": ("locked(os.open(f'/proc/self/fd/{fd}', 0))", "fcntl.flock(fd, 1)"),
}
"""The same of the descriptor `fd` of the training data."""
