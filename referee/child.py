"""One session with submitted code, in a process of its own: train once, in ranks if they are asked for, or answer
questions."""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import json
import math
import mmap
import os
import resource
import signal
import socket
import sys
import tarfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

import numpy as np
import torch
from torch import nn

from referee import channel, contract
from referee.channel import COMPILED

LONGEST_TEXT = 4000
"""Characters of an error that are reported."""
DATA_FILTER: Final[dict[str, Any]] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11.4 is the first that has one."""


class Rank(NamedTuple):
    """One of the processes, its connections to the others, and where it reports errors.

    `gate` gives a rank its data, of which rank 0 passes them on to the `others`.
    """

    number: int
    gate: socket.socket
    others: list[socket.socket]
    reports: socket.socket

    def meet(self) -> None:
        """On rank 0, wait until all others are here."""
        if self.number:
            self.gate.send(b"here")
        for other in self.others:
            other.recv(8)


def run(connection: socket.socket, gate: socket.socket, output: int, work: str, isolated: bool) -> NoReturn:
    """Run one session and end the process.

    Args:
        connection: to the referee, whose first message has the role, the task, limits, and the submission's files.
        gate: gives the descriptors of the training data when the clock starts.
        output: descriptor that takes standard output and error.
        work: folder for the submission's files, the only one that can be written.
    """
    stage = "preparation"
    rank = Rank(0, gate, [], connection)
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, descriptor)
        for stream in (sys.stdout, sys.stderr):  # the process is killed at its end, without a flush
            cast(io.TextIOWrapper, stream).reconfigure(line_buffering=True)
        order, files = channel.receive(connection)
        _, compiled = channel.receive(connection)
        _limit(order["limits"], isolated)
        os.chdir(work)
        folder = Path(work, "submission")
        for name, text in json.loads(files).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(base64.b64decode(text))
        if compiled:
            with tarfile.open(fileobj=io.BytesIO(compiled)) as archive:
                archive.extractall(work, **DATA_FILTER)  # noqa: S202 - in the sandbox that made it
        task = contract.Task(**order["task"])
        training = order["role"] == "train"
        if (count := order["ranks"]) and training:
            rank = _start_ranks(count, connection, gate)
            task = replace(task, device=f"cuda:{rank.number}" if task.device == "cuda" else task.device)
        elif count:
            os.environ.update(_rank_environment(0, 1) | {"MASTER_PORT": "0"})
        torch.set_num_threads(max(1, order["threads"] // (count if training and count else 1)))
        torch.manual_seed(task.seed)
        sys.argv = [str(folder / contract.FILE)]  # speed runs put the text of their file into their log
        module = contract.load(folder)
        model = contract.built(module, task)
        rank.meet()
        shapes = contract.shapes_of(model) if training else {}
        if rank.number == 0:
            channel.send(connection, {"kind": "built"}, _state(model) if training else b"")
        if training:
            if rank.number == 0:
                channel.send(connection, {"kind": "compiled"}, _compiled(work))
            data = _shards(rank, Path(work, "data"))
            if task.classes:  # records of a class and an image
                records = data[0].reshape(-1, 1 + math.prod(task.shape))
                data = [records[:, 1:].reshape(-1, *task.shape), records[:, 0]]
            stage = "training"
            model = contract.trained(module, model, task, data)
            rank.meet()
            if rank.number == 0:
                contract.require_same(shapes, contract.shapes_of(model))
                channel.send(connection, {"kind": "trained"}, _state(model))
            connection.recv(1)  # until the referee ends this process
        else:
            stage = "answers"
            _answer(connection, model, task.device, order["shapes"])
    except BaseException as error:
        text = str(error)
        if not isinstance(error, contract.ContractError):
            text = traceback.format_exception_only(error)[-1].strip()
            if isinstance(error, SystemExit):
                text += ": the script ended its process; catch SystemExit around its main in the adapter"
            if os.strerror(errno.ENOSYS) in text:
                text += ": the referee's filter of system calls refused it (docs/referee_trust.md)"
            place = traceback.extract_tb(error.__traceback__)[-1]
            text += f" ({Path(place.filename).name}:{place.lineno})"
        which = f"rank {rank.number}: " if rank.reports is not connection else ""
        report = {"kind": "error", "stage": stage, "text": f"{which}{text}"[:LONGEST_TEXT]}
        channel.send(rank.reports, report)
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):  # nobody reads, or the submission closed or replaced the stream
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)  # to unwind further would be the server's end, which removes its folder


def _rank_environment(rank: int, count: int) -> dict[str, str]:
    """Return torchrun's variables, without those of its own rendezvous; the port is for rank 0's process alone."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    numbers |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "ROLE_WORLD_SIZE": count}
    texts = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "referee"}
    return {name: str(value) for name, value in numbers.items()} | texts


def _start_ranks(count: int, connection: socket.socket, gate: socket.socket) -> Rank:
    """Fork the ranks and return in each of them. This process reports the first that ends, and with it the session."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count - 1)]
    read, reports = socket.socketpair()
    children: list[int] = []
    for rank in range(count):
        if (child := os.fork()) == 0:
            os.environ.update(_rank_environment(rank, count))
            return Rank(rank, pairs[rank - 1][1] if rank else gate, [] if rank else [one for one, _ in pairs], reports)
        children.append(child)
    ended, status = os.wait()
    for child in {*children} - {ended}:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            other = os.waitpid(child, 0)[1]
            if status == 0 and other not in (0, signal.SIGKILL):  # it had ended before: the cause
                ended, status = child, other
    reports.close()
    code = os.waitstatus_to_exitcode(status)
    how = f"ended without a result ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"
    report = {"kind": "error", "stage": "training", "text": f"rank {children.index(ended)} {how}"}
    if code == 0:  # it reported an error; that of another can be a consequence
        with contextlib.suppress(EOFError):
            report = channel.receive(read)[0]
    channel.send(connection, report)
    os._exit(0)


def _limit(limits: dict[str, int], isolated: bool) -> None:
    """Set the limits of this process and its children, which none of them can raise again."""
    kinds = {resource.RLIMIT_FSIZE: limits["work_bytes"], resource.RLIMIT_DATA: limits["memory_bytes"]}
    if isolated:  # else the limit counts all processes of the user
        kinds[resource.RLIMIT_NPROC] = limits["processes"] + 3  # those of the sandbox, if they have the same user
    for kind, value in (kinds | {resource.RLIMIT_CORE: 0}).items():
        resource.setrlimit(kind, (value, value))


def _state(model: nn.Module) -> memoryview:
    """Return the model's weights, each with a storage of its shape's size: that of a view can hold more."""
    file = io.BytesIO()
    torch.save({name: value.detach().cpu().clone() for name, value in model.state_dict().items()}, file)
    return file.getbuffer()


def _compiled(work: str) -> memoryview:
    """Return the folder of compilers' caches as it is before the clock, when no data were here that it could carry."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(Path(work, COMPILED).rglob("*")):
            with contextlib.suppress(OSError):  # compilers' processes may still move files
                if path.is_file() and not path.is_symlink():
                    content = path.read_bytes()
                    entry = tarfile.TarInfo(path.relative_to(work).as_posix())
                    entry.size, entry.mode = len(content), 0o755
                    archive.addfile(entry, io.BytesIO(content))
    return file.getbuffer()


def _shards(rank: Rank, folder: Path) -> list[np.ndarray[Any, Any]]:
    """Wait for the clock's start and return the training data, mapped read-only; they are also files of `folder`."""
    text, descriptors, _, _ = socket.recv_fds(rank.gate, 1 << 20, 253)  # the most of Linux
    if rank.number == 0:  # it has them before the others
        folder.mkdir(exist_ok=True)
        for number, descriptor in enumerate(descriptors):
            (folder / f"train_{number:06}.bin").symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    for other in rank.others:
        socket.send_fds(other, [text], descriptors)
    shards = []
    for descriptor, (offset, count, dtype) in zip(descriptors, json.loads(text), strict=True):
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        shards.append(np.frombuffer(mapped, dtype=np.dtype(dtype), count=count, offset=offset))
    return shards


def _answer(connection: socket.socket, model: nn.Module, device: str, shapes: list[list[int]]) -> None:
    """Load the weights and answer questions until the referee ends this process; `shapes` are those of a row of a
    question and of its answer."""
    _, state = channel.receive(connection)
    model.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    model.to(device).eval()
    kind = torch.int64 if len(shapes[0]) == 1 else torch.uint8
    channel.send(connection, {"kind": "loaded"})
    while True:
        question, content = channel.receive(connection)
        rows = question["rows"]
        inputs = torch.frombuffer(content, dtype=kind).reshape(rows, *shapes[0]).to(device)
        values, normalised = contract.answered(model, inputs, (rows, *shapes[1]))
        channel.send(connection, {"kind": "computed"})
        asks, places = channel.receive(connection)  # not before: the model does not know where it is asked
        positions = torch.frombuffer(places, dtype=torch.int64).reshape(rows, -1).to(device)
        values = values.reshape(rows, -1, values.shape[-1])  # an image has one position
        if asks["kind"] == "targets":
            losses = nn.functional.cross_entropy(values.mT.float(), positions, reduction="none")
            channel.send(connection, {"kind": "answer"}, losses.cpu().contiguous().numpy().tobytes())
            continue
        asked = values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1])).float().cpu().contiguous()
        channel.send(connection, {"kind": "answer", "log": normalised}, asked.numpy().tobytes())
