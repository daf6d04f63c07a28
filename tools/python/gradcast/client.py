"""The control socket of a gradcastd: HTTP and JSON over a Unix socket, as gradcastctl uses it."""

from __future__ import annotations

import http.client
import json
import os
import socket as sockets
import time
import urllib.parse
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

ENDED = ("done", "failed", "cancelled")
_BODY_MAX = 64 << 20   # bytes of an answer
_LINE_MAX = 16 << 20   # bytes of an event
_JOB_FILE_MAX = 1 << 20


class Error(Exception):
    """What a Client cannot do; its text says why."""


class Unreachable(Error):
    """No gradcastd answers at the socket, or its answer broke off."""


class Refused(Error):
    """gradcastd has answered with an error.

    code: its name, "invalid" for example.  status: of HTTP.
    """

    def __init__(self, text: str, code: str, status: int) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Optional[float]) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class Client:
    """One gradcastd, at `socket`; by default the socket that gradcastctl asks: the service's, else that of the user's own daemon.

    Each call is a connection of its own, so a Client may be used by several threads.  `timeout`: seconds that an answer may take.
    All methods raise Unreachable, Refused and, for answers that make no sense, Error.  A job is named by its id, or by the first digits of
    it that no other job has.
    """

    def __init__(self, socket: Optional[str] = None, timeout: float = 30.0) -> None:
        self.socket = socket or _socket()
        self.timeout = timeout

    # ---- what there is ----

    def version(self) -> Dict[str, Any]:
        """Version of the daemon, and the name of its node."""
        return self._get("/v1/version")

    def nodes(self) -> List[Dict[str, Any]]:
        """The nodes that the daemon knows: name, whether it is alive, its jobs, why it is not seen."""
        return self._rows("/v1/nodes", "nodes")

    def jobs(self) -> List[Dict[str, Any]]:
        """The daemon's jobs, the newest first: id, name, nodes and status of each."""
        return self._rows("/v1/jobs", "jobs")

    def describe(self, job: str) -> Dict[str, Any]:
        """All that is known of a job: "id", "name", "nodes", "folder" at the daemon's node, and "status" with state, step, loss, ..."""
        return self._get(self._of_job(job))

    def log(self, job: str) -> str:
        """The job's log at the daemon's node."""
        return self._text(self._of_job(job) + "/log")

    # ---- orders ----

    def submit(self, job: str, nodes: Sequence[str] = (), count: int = 0, base: Optional[str] = None) -> str:
        """Submits a job and returns its id at once.  A node that refuses it makes it fail: see watch() and wait().

        job: path of a job file, or its text if it has a line break.  Relative paths in it are against `base`: by default the folder of
        the file, or the working directory.  nodes: names; or count: how many.  Without both all nodes that are alive take part.
        """
        return self._begin("/v1/jobs", job, nodes, count, base)

    def resume(
        self,
        job: str,
        text: Optional[str] = None,
        nodes: Sequence[str] = (),
        count: int = 0,
        base: Optional[str] = None,
        allow_command: bool = False,
    ) -> str:
        """Resumes a job that has ended, from its newest checkpoint, and returns its id.

        text: another job file, as submit() takes it.  allow_command: the program that net.command of the checkpoint's own job file names may be started.
        """
        return self._begin(self._of_job(job) + "/resume", text, nodes, count, base, allow_command)

    def cancel(self, job: str) -> Dict[str, Any]:
        """Cancels a job.  Returns its description, in which it may still run for a moment."""
        return self._post(self._of_job(job) + "/cancel", {})

    def watch(self, job: str) -> Iterator[Dict[str, Any]]:
        """Yields the job's description whenever it has changed, at most ten times a second, until the job has ended."""
        path = self._of_job(job)
        connection, response = self._open("GET", path + "/watch", None, self.timeout)
        try:
            if response.status == 503:   # no seat is left for a watcher
                connection.close()
                yield from self._poll(path)
                return
            self._check(response)
            last: Dict[str, Any] = {}
            for event, text in self._events(response):
                found = self._json(text)
                if event == "error":
                    raise Refused(str(found.get("error", "the job is gone")), str(found.get("code", "")), response.status)
                last = found
                yield last
            if _state(last) not in ENDED:
                raise Unreachable(f"gradcastd at {self.socket} ended while the job ran")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"gradcastd at {self.socket}: {_words(error)} while the job ran") from error
        finally:
            connection.close()

    def wait(self, job: str, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Waits until a job has ended, and returns its description.  timeout: seconds; TimeoutError after that."""
        until = None if timeout is None else time.monotonic() + timeout
        path = self._of_job(job)
        while True:
            found = self._get(path)
            if _state(found) in ENDED:
                return found
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"job {job} is {_state(found)} after {timeout} s")
            time.sleep(0.1)

    # ---- below ----

    @staticmethod
    def _of_job(job: str) -> str:
        if not job:
            raise ValueError("job: a job's id is missing")
        return "/v1/jobs/" + urllib.parse.quote(job, safe="")

    def _begin(
        self, path: str, job: Optional[str], nodes: Sequence[str], count: int, base: Optional[str], allow_command: bool = False
    ) -> str:
        if isinstance(nodes, str):
            raise TypeError('nodes: a list of names, ["a", "b"]')
        asked: Dict[str, Any] = {"nodes": list(nodes), "count": count}
        if allow_command:
            asked["allow_command"] = True
        if job is not None:
            asked.update(_job_file(job, base))
        answer = self._post(path, asked)
        if not isinstance(answer.get("id"), str):
            raise Error(f"gradcastd at {self.socket}: its answer has no id")
        return answer["id"]

    def _poll(self, path: str) -> Iterator[Dict[str, Any]]:
        last: Optional[Dict[str, Any]] = None
        while last is None or _state(last) not in ENDED:
            found = self._get(path)
            if found != last:
                yield found
            last = found
            time.sleep(1 if _state(last) not in ENDED else 0)

    def _open(self, method: str, path: str, body: Optional[bytes], timeout: Optional[float]):
        connection = _Connection(self.socket, timeout)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(self._unreachable(error)) from error

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return f"no permission to use {self.socket}: be root or in its group"
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return f"no gradcastd answers at {self.socket}: is it running?  systemctl status gradcastd"
        return f"gradcastd at {self.socket}: {_words(error)}"

    def _ask(self, method: str, path: str, body: Optional[bytes] = None):
        """The answer's bytes and headers."""
        connection, response = self._open(method, path, body, self.timeout)
        try:
            self._check(response)
            return self._read(response), response.headers
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"gradcastd at {self.socket}: {_words(error)}") from error
        finally:
            connection.close()

    def _get(self, path: str) -> Dict[str, Any]:
        return self._json(self._ask("GET", path)[0])

    def _post(self, path: str, asked: Dict[str, Any]) -> Dict[str, Any]:
        return self._json(self._ask("POST", path, json.dumps(asked).encode())[0])

    def _rows(self, path: str, name: str) -> List[Dict[str, Any]]:
        rows = self._get(path).get(name)
        if not isinstance(rows, list):
            raise Error(f"gradcastd at {self.socket}: its answer has no list \"{name}\"")
        return rows

    def _text(self, path: str) -> str:
        """A file of a job, piece by piece."""
        pieces: List[bytes] = []
        offset = 0
        while True:
            piece, headers = self._ask("GET", f"{path}?offset={offset}")
            pieces.append(piece)
            if not piece:
                return b"".join(pieces).decode(errors="replace")
            offset = int(headers.get("Gradcast-Next", offset + len(piece)))

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        body = response.read(_BODY_MAX + 1)
        if len(body) > _BODY_MAX:
            raise Error(f"gradcastd at {self.socket}: its answer has more than {_BODY_MAX} bytes")
        return body

    def _check(self, response: http.client.HTTPResponse) -> None:
        if response.status // 100 == 2:
            return
        try:
            said = json.loads(self._read(response))
        except ValueError:
            said = None
        said = said if isinstance(said, dict) else {}
        text = said.get("error") or f"gradcastd at {self.socket} answered with HTTP status {response.status}"
        raise Refused(str(text), str(said.get("code", "")), response.status)

    def _json(self, text: Union[bytes, str]) -> Dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise Error(f"gradcastd at {self.socket}: its answer is not JSON") from error
        if not isinstance(found, dict):
            raise Error(f"gradcastd at {self.socket}: its answer is not a JSON object")
        return found

    def _events(self, response: http.client.HTTPResponse):
        """Yields (event, data) of server-sent events; lines that keep the connection alive are left out."""
        event, data = "", ""
        while True:
            line = response.readline(_LINE_MAX)
            if not line:
                return
            if not line.endswith(b"\n"):
                raise Error(f"gradcastd at {self.socket}: an event broke off")
            text = line.decode(errors="replace").rstrip("\r\n")
            if not text:
                if data:
                    yield event, data
                event, data = "", ""
            elif text.startswith("event:"):
                event = text[6:].strip()
            elif text.startswith("data:"):
                data += text[5:].strip()


def _socket() -> str:
    system, runtime = "/run/gradcast/control.sock", os.environ.get("XDG_RUNTIME_DIR")
    own = os.path.join(runtime, "gradcast", "control.sock") if runtime else ""
    return own if own and os.path.exists(own) and not os.path.exists(system) else system


def _state(description: Dict[str, Any]) -> str:
    status = description.get("status")
    return str(status.get("state", "")) if isinstance(status, dict) else ""


def _words(error: Exception) -> str:
    return "the answer took too long" if isinstance(error, (TimeoutError, sockets.timeout)) else (str(error) or type(error).__name__)


def _job_file(job: str, base: Optional[str]) -> Dict[str, Any]:
    if "\n" in job:
        return {"text": job, "path": "job.toml", "base": os.path.abspath(base or ".")}
    with open(job, encoding="utf-8") as file:
        text = file.read(_JOB_FILE_MAX + 1)
    if len(text) > _JOB_FILE_MAX:
        raise ValueError(f"{job}: a job file has at most {_JOB_FILE_MAX} characters")
    return {"text": text, "path": job, "base": os.path.abspath(base or os.path.dirname(job) or ".")}
