"""The border between gradcastd and a process that computes a net: messages over a socket.  runtime/attach/README.md describes it.

This file knows kinds of messages and their bytes, and nothing of nets.  memory.py has the memory that both sides share.

A wait for a message ends with the socket, which the kernel closes when the daemon closes its end or dies.  START comes at once and has a
deadline of its own.
"""

from __future__ import annotations

import json
import os
import socket as sockets
import stat
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from .client import Error

WIRE = 2
TEXT_MAX = 32768       # bytes of text in one message
WHOLE_MAX = 16 << 20   # bytes of a text of several pieces
FAIL_MAX = 8 << 10     # bytes of the line of FAIL
START_SECONDS = 60.0

START, MEMORY, COMPUTE = 1, 2, 3
HELLO, READY, LOSS, BUCKET, DONE, FAIL, CONSTANTS = 16, 17, 18, 19, 20, 21, 22
NO_CLASSES = 0xFFFFFFFF   # `right` of a net that gives no classes

_TEXT = struct.Struct("<II")
_COMPUTE = struct.Struct("<IIQIIQ")
_LOSS = struct.Struct("<IId")
_BUCKET = struct.Struct("<II")
_NAMES = {START: "START", MEMORY: "MEMORY", COMPUTE: "COMPUTE"}


class AttachError(Error):
    """What gradcast.attach() refuses, or what the daemon said that makes no sense; its text says why."""


class JobEnded(Exception):
    """The daemon has closed the socket: the process is to end."""


class Compute(NamedTuple):
    """One block that is to be computed."""

    training: bool
    step: int
    block: int
    samples: int
    seed: int


class Border:
    """The process's end of the socket.

    A Border is used by one thread of the process that has created it.  In a child of fork() the socket is closed, so that a worker that
    outlives the process does not hold it.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over.  AttachError: it is not a socket of SOCK_SEQPACKET."""
        try:
            found = os.fstat(descriptor)
        except OSError as error:
            raise AttachError(f"GRADCAST_ATTACH={descriptor}: no open descriptor: {error.strerror}") from None
        if not stat.S_ISSOCK(found.st_mode):
            raise AttachError(f"GRADCAST_ATTACH={descriptor}: not a socket")
        self._socket = sockets.socket(fileno=descriptor)
        if self._socket.family != sockets.AF_UNIX or self._socket.type != sockets.SOCK_SEQPACKET:
            self._socket.detach()
            raise AttachError(f"GRADCAST_ATTACH={descriptor}: not a Unix socket of type SOCK_SEQPACKET")
        os.set_inheritable(descriptor, False)   # programs that this process starts do not get it
        self._socket.settimeout(None)
        self.ended = False         # the daemon has closed the socket
        self.failed = False        # FAIL is sent
        self.torch_hangs = False   # a backward pass was left by an exception (attach.py)
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self._socket.close()
        self.ended = True

    # ---- from the daemon ----

    def start(self) -> Dict[str, Any]:
        """START.  AttachError: none within 60 s."""
        self._socket.settimeout(START_SECONDS)
        try:
            return self._json(START)[0]
        except sockets.timeout:
            raise AttachError(f"gradcastd has not said START within {START_SECONDS:.0f} s") from None
        finally:
            self._socket.settimeout(None)

    def memory(self) -> Tuple[Dict[str, Any], int, int]:
        """MEMORY: its text, and the descriptors of the parameters and of the block, which the caller owns."""
        found, descriptors = self._json(MEMORY)
        if len(descriptors) != 2:
            _close(descriptors)
            raise AttachError(f"MEMORY of gradcastd has {len(descriptors)} descriptors instead of 2")
        return found, descriptors[0], descriptors[1]

    def compute(self) -> Compute:
        """The next COMPUTE.  JobEnded: the daemon has closed the socket."""
        packet, descriptors = self._receive()
        _close(descriptors)
        if len(packet) != _COMPUTE.size:
            raise AttachError(f"COMPUTE was expected of gradcastd, which said {_said(packet)}")
        kind, mode, step, block, samples, seed = _COMPUTE.unpack(packet)
        if kind != COMPUTE or mode > 1:
            raise AttachError(f"COMPUTE was expected of gradcastd, which said {_said(packet)}, mode {mode}")
        return Compute(mode == 0, step, block, samples, seed)

    # ---- to the daemon ----

    def hello(self, found: Dict[str, Any]) -> None:
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        if len(text) > WHOLE_MAX:
            raise AttachError(f"the names of tensors and modules take {len(text)} bytes; {WHOLE_MAX} are allowed")
        self._text(HELLO, text)

    def constants(self, parts: Iterable[Any]) -> None:
        """The bytes of all constants, one after the other."""
        piece = bytearray()
        for part in parts:
            view = memoryview(part).cast("B")
            for at in range(0, len(view), TEXT_MAX):
                piece += view[at : at + TEXT_MAX]
                if len(piece) > TEXT_MAX:   # the last piece is sent below, and says so
                    self._send(_TEXT.pack(CONSTANTS, 1) + piece[:TEXT_MAX])
                    del piece[:TEXT_MAX]
        self._send(_TEXT.pack(CONSTANTS, 0) + piece)

    def ready(self) -> None:
        self._text(READY, b"")

    def loss(self, loss: float, right: int) -> None:
        self._send(_LOSS.pack(LOSS, right, loss))

    def bucket(self, index: int) -> None:
        self._send(_BUCKET.pack(BUCKET, index))

    def done(self) -> None:
        self._text(DONE, b"")

    def fail(self, line: str) -> None:
        """Says FAIL once, unless the socket has ended.  Never raises."""
        if self.ended or self.failed:
            return
        self.failed = True
        try:
            self._text(FAIL, " ".join(line.split()).encode(errors="replace")[:FAIL_MAX].decode(errors="ignore").encode())
        except (JobEnded, OSError):
            pass

    # ---- below ----

    def _receive(self) -> Tuple[bytes, List[int]]:
        if self.ended:
            raise JobEnded
        try:
            packet, descriptors, flags, _ = sockets.recv_fds(self._socket, TEXT_MAX + _TEXT.size + 1, 4)
        except ConnectionError:
            packet, descriptors, flags = b"", [], 0
        for each in descriptors:
            os.set_inheritable(each, False)
        if not packet:
            _close(descriptors)
            self.ended = True
            raise JobEnded
        if flags & (sockets.MSG_TRUNC | sockets.MSG_CTRUNC):
            _close(descriptors)
            raise AttachError(f"a message of gradcastd is longer than {TEXT_MAX} bytes, or has too many descriptors")
        return packet, descriptors

    def _json(self, wanted: int) -> Tuple[Dict[str, Any], List[int]]:
        text, more, descriptors = b"", 1, []
        while more:
            packet, some = self._receive()
            descriptors += some
            kind, more = _TEXT.unpack_from(packet) if len(packet) >= _TEXT.size else (0, 0)
            text += packet[_TEXT.size :]
            if kind != wanted or more > 1 or len(text) > WHOLE_MAX:
                _close(descriptors)
                raise AttachError(f"{_NAMES[wanted]} was expected of gradcastd, which said {_said(packet)}, {len(text)} bytes of text")
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            _close(descriptors)
            raise AttachError(f"{_NAMES[wanted]} of gradcastd is not a JSON object")
        return found, descriptors

    def _text(self, kind: int, text: bytes) -> None:
        pieces = [text[at : at + TEXT_MAX] for at in range(0, len(text), TEXT_MAX)] or [b""]
        for i, piece in enumerate(pieces):
            self._send(_TEXT.pack(kind, int(i + 1 < len(pieces))) + piece)

    def _send(self, packet: bytes) -> None:
        if self.ended:
            raise JobEnded
        try:
            self._socket.send(packet)
        except ConnectionError:   # BrokenPipeError is one
            self.ended = True
            raise JobEnded from None


def number(found: Dict[str, Any], name: str, least: int = 0, most: int = (1 << 64) - 1, where: str = "START") -> int:
    """An integer of a message.  AttachError: it is missing, or out of its range."""
    value: Optional[Any] = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise AttachError(f"{where} of gradcastd: {name} is {value!r}, not an integer of {least} to {most}")
    return value


def _said(packet: bytes) -> str:
    kind = int.from_bytes(packet[:4], "little")
    return f"{_NAMES.get(kind, f'kind {kind}')} ({len(packet)} bytes)"


def _close(descriptors: List[int]) -> None:
    for each in descriptors:
        os.close(each)
