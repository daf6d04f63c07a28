"""What bench/throttle.py makes of a process that computes: prints its share of a core where it is to get 0.1, and whether it goes on afterwards."""

import os, signal, subprocess, sys, time


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def stopped_once(pid):
    while state(pid) != "T":
        time.sleep(0.001)


burner = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
words = [sys.executable, "bench/throttle.py", str(burner.pid), "0.1"]
try:
    throttle, clock = subprocess.Popen(words), ~burner.pid << 3 | 2
    stopped_once(burner.pid)
    begin, used = time.monotonic(), time.clock_gettime(clock)
    time.sleep(1)
    share = (time.clock_gettime(clock) - used) / (time.monotonic() - begin)
    throttle.terminate()
    print("ended", throttle.wait(), "stopped" if state(burner.pid) == "T" else "goes on")
    parent = subprocess.Popen(["sh", "-c", " ".join(words) + " & wait"], stdout=subprocess.PIPE)
    stopped_once(burner.pid)
    parent.kill()
    parent.stdout.read()   # until the throttle has ended as well
    print("parent killed,", "stopped" if state(burner.pid) == "T" else "goes on")
    print(f"share {share:.3f}")
finally:
    os.killpg(burner.pid, signal.SIGKILL)
