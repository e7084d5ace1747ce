"""Messages between the referee and a process with submitted code: a length, a JSON header, raw bytes. No pickle."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

Header = dict[str, Any]
LENGTHS: Final = struct.Struct("<IQ")
"""Bytes of the header and of the payload."""
LONGEST_HEADER: Final = 1 << 16
COMPILED: Final = "compiled"
"""Folder of compilers' caches in a session's work folder."""
NO_DEVICE: Final = "no device: "
"""Start of the server's first message if torch cannot use the device."""


class MalformedMessage(Exception):
    """Message that is too long or has no valid header."""


def encode(header: Header, payload_bytes: int = 0) -> bytes:
    """Return the bytes that come before a payload of `payload_bytes`."""
    text = json.dumps(header).encode()
    return LENGTHS.pack(len(text), payload_bytes) + text


def send(connection: socket.socket, header: Header, payload: bytes | memoryview = b"") -> None:
    """Send a message."""
    connection.sendall(encode(header, len(payload)))
    connection.sendall(payload)


def lengths(text: bytes, largest: int) -> tuple[int, int]:
    """Return the bytes of header and payload from the first `LENGTHS.size` bytes of a message. Raises MalformedMessage
    if the payload is larger than `largest` or the header larger than `LONGEST_HEADER`."""
    header, payload = LENGTHS.unpack(text)
    if header > LONGEST_HEADER or payload > largest:
        raise MalformedMessage(f"a message of {header:,} + {payload:,} bytes, where at most {largest:,} were due")
    return header, payload


def parse(text: bytes) -> Header:
    """Return a header. Raises MalformedMessage if the text is not a JSON object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise MalformedMessage("a message without a JSON object as header")
    return values


def receive(connection: socket.socket) -> tuple[Header, bytearray]:
    """Wait for a message from the referee, which is trusted, and return it. Raises EOFError if the other side has
    ended."""
    header, payload = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    return parse(bytes(_exactly(connection, header))), _exactly(connection, payload)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    received = bytearray(count)
    view = memoryview(received)
    done = 0
    while done < count:
        got = connection.recv_into(view[done:])
        if not got:
            raise EOFError("the connection was closed")
        done += got
    return received
