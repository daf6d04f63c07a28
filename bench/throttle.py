"""Holds a process to a share of one core as a cgroup's cpu.max does: its group is stopped when it has used its share of a period of 30 ms.

usage: throttle.py PID SHARE      until SIGTERM, or until the parent or the process has ended; at the end the group of PID is continued
"""

import os, signal, sys, time

period_s = 0.030
wait_s = 0.0003   # between two looks at the clock of a process that has used almost all


def throttle(pid, quota_s):
    """Ends with an exception.  What is used beyond the quota is taken from the next period; what is left is lost."""
    parent, clock = os.getppid(), ~pid << 3 | 2   # CPU time of all threads, see clock_getcpuclockid(3)
    left, end, used = 0.0, time.monotonic(), time.clock_gettime(clock)
    while os.getppid() == parent:
        left, end = min(left + quota_s, quota_s), max(end + period_s, time.monotonic())
        os.killpg(pid, signal.SIGCONT)
        while left > 0 and time.monotonic() < end:
            time.sleep(max(min(left, end - time.monotonic()), wait_s))   # on one core it cannot use more in that time
            before, used = used, time.clock_gettime(clock)
            left -= used - before
        if left <= 0:
            os.killpg(pid, signal.SIGSTOP)
        time.sleep(max(end - time.monotonic(), 0))


def main():
    pid, share = int(sys.argv[1]), float(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))   # so that busy cores do not delay it
    except OSError:
        pass   # needs root
    try:
        throttle(pid, share * period_s)
    except OSError:
        pass   # the process has ended
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            os.killpg(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


main()
