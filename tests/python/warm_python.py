"""A Python that has imported torch, and forks a child for each script: a test then does not wait for torch.

A child is as a Python started anew, but for what torch's import leaves.  Create a WarmPython before this process runs a backward pass of torch,
as torch's engine does not work in children forked after one.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import sys


class WarmPython:
    """modules: names that are imported before the first script."""

    def __init__(self, modules):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            try:
                _serve(theirs, modules)
            finally:
                os._exit(0)
        theirs.close()
        atexit.register(self._socket.close)   # ends it

    def start(self, command, environment, folder, attached, outputs, errors):
        """Runs a script, command[0], with its arguments.  attached, outputs, errors: descriptors it gets.  Returns a Child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        text = json.dumps({"command": list(map(str, command)), "environment": environment, "folder": str(folder or ".")})
        socket.send_fds(self._socket, [text.encode()], [attached, outputs, errors, theirs.fileno()])
        theirs.close()
        return Child(ours)


class Child:
    """A script that runs.  pid, poll(), kill() and wait() as of subprocess.Popen."""

    def __init__(self, told):
        self._socket = told
        self._socket.settimeout(150)
        self.pid = int(self._socket.recv(100))
        self.returncode = None

    def poll(self):
        try:
            self.wait(0)
        except TimeoutError:
            pass
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self._socket.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(int(self._socket.recv(100)))
            except (BlockingIOError, socket.timeout):
                raise TimeoutError(f"{self.pid} runs after {timeout} s") from None
        return self.returncode

    def kill(self):
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self):
        self._socket.close()


def _serve(requests, modules):
    for module in modules:
        __import__(module)
    children = {}
    requests.settimeout(0.02)
    while True:
        for pid in list(children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                children.pop(pid).send(str(status).encode())
        try:
            text, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        except socket.timeout:
            continue
        if not text:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            for told in children.values():
                told.close()
            os.close(descriptors.pop())
            _run(json.loads(text), *descriptors)
        told = socket.socket(fileno=descriptors.pop())
        told.send(str(pid).encode())
        children[pid] = told
        for each in descriptors:
            os.close(each)


def _run(request, attached, outputs, errors):
    """In the child: becomes the script."""
    status = 1
    try:
        os.dup2(outputs, 1)
        os.dup2(errors, 2)
        os.close(outputs)
        os.close(errors)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"], GRADCAST_ATTACH=str(attached))
        sys.argv = request["command"]
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        sys.path.insert(1, os.environ["PYTHONPATH"])
        atexit._clear()
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
