"""Speed: all of ours, PyTorch's, then what tells where the time goes.  In the order of worth, and every part writes what it has."""
import concurrent.futures
import csv
import glob
import io
import json
import os
import re
import shutil
import time

from device.run import Missing, Trouble, last

# images/s / those of PyTorch's fastest way at that batch: what a cell must reach, and the next aim.
targets = {("lenet5", 100): (1.0, 2.0), ("mlp", 100): (1.0, 2.0), ("nin", 1024): (0.9, 1.1), ("resnet9", 1024): (0.9, 1.1)}
precisions = ["tf32", "bf16"]
# Small tests of gradcast's kernels: the tools slow them a hundredfold, and racecheck warns about the libraries' kernels.
sanitized = "CudaSmoke.AKernel*:Words.*:DeviceCodec.*:Resident.*:*CudaLayers.AreAsOnTheCpu/*conv:*CudaLayers.AreAsOnTheCpu/*max_pool:" \
            "*CudaLayers.AreAsOnTheCpu/*batch_norm:*CudaLayers.AreAsOnTheCpu/*dropout:-*Combine*"  # fmt: skip
sanitizer_flags = ["--kernel-name", "kns=gradcast", "--error-exitcode", "9"]
tested = r"^\[ +(?:OK|FAILED|SKIPPED) +\] .*\(\d+ ms\)$"


def tool(name):
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/local/cuda*/bin/{name}"))), None)
    if not found:
        raise Missing(name)
    return found


def reports(text):
    """The complete lines of JSON in a program's output."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass   # cut off
    return found


def cell_of(row):
    return row["net"], row["batch"], row["precision"]


def bench(check, command, seconds, each=None, **lists):
    """gradcast-bench over all nets, batches and precisions in one process; its lines of JSON, also where it fails."""
    words = [check.bench, command, "--device", "cuda", "--json"]
    for flag, values in lists.items():
        words += [f"--{flag}", ",".join(map(str, values)) if isinstance(values, list) else str(values)]
    end = check.children.run("bench-" + command, words, seconds, silence=3 * check.silence, each=each)
    rows = reports(end.text)
    for row in rows:
        if "error" in row:
            check.results.count("failed", f"gradcast-bench {command}, {' '.join(map(str, cell_of(row)))}: {row['error']}")
    if not end.ok() and not any("error" in row for row in rows):
        check.results.count("failed", f"gradcast-bench {command} {end.how()}, after {len(rows)} cells: {last(end.text)}")
    return rows


def lists(check):
    if check.host:
        return {"net": ["lenet5"], "batch": [2, 4], "precision": ["f32"], "repeat": 1, "warmup": 1}
    return {"net": list(check.cells), "batch": [100, 1024], "precision": precisions}


def ours(check, seconds, speed):
    def each(line):
        for row in reports(line):
            if "error" not in row:
                one, many = row["rows"][0], row["rows"][-1]
                speed[cell_of(row)] = {"waited": one["images_per_s"], "queued": one["queued_images_per_s"], "many_blocks": many["queued_images_per_s"] or many["images_per_s"]}
                check.results.say(f"  {row['net']}, batch {row['batch']}, {row['precision']}: {best(speed[cell_of(row)]):.0f} images/s in one block")
                check.results.report["speed"] = rows_of(speed, {})
                check.results.write()

    more = {"blocks": [1, 2], "threads": 1} if check.host else {"blocks": [1, 8], "threads": 4, "repeat": 100, "warmup": 10}
    bench(check, "step", seconds, each, **{**lists(check), **more})
    if not speed:
        raise Trouble("gradcast-bench step measured nothing")
    check.results.count("passed", f"gradcast-bench step: {len(speed)} cells", len(speed))


def best(mine):
    return mine["queued"] or mine["waited"]


def rows_of(speed, theirs):
    """For each cell both sides and their ratios: best / best, which is judged, and of steps that the host waits for."""
    rows = []
    for cell, mine in speed.items():
        rival = theirs.get(cell, {})
        row = {"net": cell[0], "batch": cell[1], "precision": cell[2], **mine, "torch": rival, "ratio": None, "ratio_waited": None}
        if rival.get("images_per_s"):
            row["ratio"], row["ratio_waited"] = best(mine) / rival["images_per_s"], mine["waited"] / rival["waited"]
        rows.append(row)
    return rows


def rival(check, seconds, speed):
    """bench/rivals/torch_gpu.py; a cell's last line has all its ways."""
    if not check.python:
        raise Missing("a python3 with torch")
    theirs = {}

    def each(line):
        for row in reports(line):
            if row["bench"] == "step":
                theirs[cell_of(row)] = row
                check.results.report["speed"] = rows_of(speed, theirs)
            else:
                check.results.report.setdefault("torch_kernels", []).append(row)
            check.results.write()

    # The cells that are judged come first.
    cells = sorted(((net, batch) for net, all_of_net in check.cells.items() for batch in all_of_net), key=lambda cell: cell not in targets)
    words = [check.python, os.path.join(check.root, "bench", "rivals", "torch_gpu.py"), f"--cells={','.join(f'{net}:{batch}' for net, batch in cells)}"]
    words += [f"--precisions={','.join(precisions)}", "--seconds=0.25", f"--limit={max(10, seconds - 25):.0f}", "--profile"]
    end = check.children.run("torch", words, seconds, environment=check.compiled, each=each)   # each printed line is complete
    for way, why in {way: why for row in theirs.values() for way, why in row["failed"].items()}.items():
        check.results.say(f"  PyTorch's {way} failed: {why}")
    if left := [f"{' '.join(map(str, cell))} ({', '.join(row['untried'])})" for cell, row in theirs.items() if row["untried"]]:
        check.results.count("skipped", f"PyTorch's ways that were not tried, no time left: {'; '.join(left)}")
    if not end.ok():
        raise Trouble(f"{end.how()}: {last(end.text)}")


def table(check):
    rows = check.results.report.get("speed", [])
    show = lambda value, form: format(value, form) if value else "-"   # noqa: E731
    say = check.results.say
    say()
    say("images/s of both sides: steps queued, the next before the host waits for the last; and each step waited for")
    say(f"{'':20} {'gradcast':>10} {'waited':>10} {'8 blocks':>10} {'PyTorch':>10} {'waited':>10}  {'its best way':28} {'ratio':>6} {'waited':>6}")
    for row in rows:
        say(f"{row['net']:8} {row['batch']:5} {row['precision']:5} {show(row['queued'], '10.0f'):>10} {row['waited']:10.0f} {row['many_blocks']:10.0f} "
            f"{show(row['torch'].get('images_per_s'), '10.0f'):>10} {show(row['torch'].get('waited'), '10.0f'):>10}  {row['torch'].get('best') or '-':28} "
            f"{show(row['ratio'], '6.2f'):>6} {show(row['ratio_waited'], '6.2f'):>6}")  # fmt: skip
    say()
    for (net, batch), (least, aim) in targets.items():
        ratios = {row["precision"]: row["ratio"] for row in rows if (row["net"], row["batch"]) == (net, batch) and row["ratio"]}
        if ratios:
            told = ", ".join(f"{ratio:.2f} in {precision}" for precision, ratio in ratios.items())
            check.results.count("passed" if min(ratios.values()) >= least else "failed", f"{net} at {batch}: {told} of PyTorch's best way, target {least}, next {aim}")


def beside_rival(check, seconds, speed):
    try:
        rival(check, seconds, speed)
    finally:
        table(check)


def layers(check, seconds):
    """Times of layers and passes, launched one by one, and the engines that cuDNN and cuBLASLt proposed first."""
    rows = bench(check, "layers", seconds, **{**lists(check), "repeat": 1 if check.host else 20})
    check.results.report["layers"] = rows
    if not [row for row in rows if row["rows"] and "error" not in row]:
        raise Trouble("gradcast-bench layers measured nothing")
    check.results.count("passed", f"gradcast-bench layers: {len(rows)} nets")


def kernels(check, seconds):
    """The time of each kernel inside our graphs, by ncu; PyTorch's are in its profiler's lines."""
    ncu, until, found = tool("ncu"), time.time() + seconds, check.results.report.setdefault("kernels", [])
    repeat, warmup = 3, 1   # `step` measures its repetitions twice: waited for, and queued
    for net, batch in (("lenet5", 100), ("mlp", 100), ("resnet9", 1024)):
        words = [ncu, "--graph-profiling", "node", "--metrics", "gpu__time_duration.sum", "--csv", "--clock-control", "none", "--target-processes", "all"]
        words += [check.bench, "step", "--device", "cuda", "--net", net, "--batch", str(batch), "--precision", "tf32"]
        words += ["--repeat", str(repeat), "--warmup", str(warmup)]
        end = check.children.run(f"ncu-{net}", words, until - time.time())
        if "ERR_NVGPUCTRPERM" in end.text:
            raise Missing("the permission to read the GPU's counters (ERR_NVGPUCTRPERM)")
        sums = {}
        table_begin = end.text.find('"ID"')
        for row in csv.DictReader(io.StringIO(end.text[table_begin:] if table_begin >= 0 else "")):
            if row.get("Metric Name") != "gpu__time_duration.sum" or not row.get("Metric Value"):
                continue
            scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}[row["Metric Unit"]]
            calls, us = sums.get(row["Kernel Name"], (0, 0.0))
            sums[row["Kernel Name"]] = (calls + 1, us + scale * float(row["Metric Value"].replace(",", "")))
        if not sums:
            raise Missing(f"a kernel's time in the output of ncu ({end.how()}: {last(end.text)})")
        longest = sorted(sums.items(), key=lambda item: -item[1][1])
        found.append({"net": net, "batch": batch, "precision": "tf32", "steps": 2 * repeat + warmup, "us": round(sum(us for _, us in sums.values()), 1),
                      "kernels": [{"name": name[:120], "calls": calls, "us": round(us, 2)} for name, (calls, us) in longest]})  # fmt: skip
        check.results.write()
    check.results.count("passed", "times of kernels in graphs, by ncu")


def sanitizer(check, seconds):
    """Memcheck and racecheck at the same time."""
    program, found = check.tests, tool("compute-sanitizer")

    def one(kind):
        words = [found, "--tool", kind] + sanitizer_flags + (["--report-api-errors", "no"] if kind == "memcheck" else [])   # the libraries' own
        end = check.children.run(f"sanitizer-{kind}", words + [program, f"--gtest_filter={sanitized}"], seconds)
        lacks = re.search(r"Error: ((?:Device not supported|Failed to initialize).*)", end.text)   # the program runs, but unchecked
        errors = re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+)", end.text)
        number = len(re.findall(tested, end.text, re.M))
        if lacks:
            check.results.count("skipped", f"compute-sanitizer, {kind}: {lacks[1]}")
        elif end.code is None and not re.search("^========= (Error|Invalid|Race|Warning|Program hit)", end.text, re.M):
            check.results.count("skipped", f"compute-sanitizer, {kind}: {end.how()}, and found nothing in {number} tests")
        elif end.ok() and errors and not any(int(a or b) for a, b in errors):
            check.results.count("passed", f"compute-sanitizer, {kind}, {number} tests")
        else:
            check.results.count("failed", f"compute-sanitizer, {kind}: {last(end.text)}")
            check.results.show("\n".join(re.findall("^=========.*|^.*FAILED.*", end.text, re.M)), 40)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(one, kind) for kind in ("memcheck", "racecheck")]
        try:
            for each in waiting:
                each.result()
        except BaseException:
            check.children.kill_all()
            raise


def stage_b(check, seconds):
    until, speed, results = time.time() + seconds, {}, check.results
    # What a part may take, and what it leaves to those behind it.
    plan = [("ours", lambda left: ours(check, left, speed), 60, 0), ("PyTorch", lambda left: beside_rival(check, left, speed), 180, 110),
            ("layers", lambda left: layers(check, left), 40, 40),
            ("kernel times", lambda left: kernels(check, left), 50, 40), ("sanitizer", lambda left: sanitizer(check, left), 90, 5)]  # fmt: skip
    for name, part, most, kept in plan:
        left = min(most, until - time.time() - kept)
        results.say(f"-- {name}, at most {left:.0f} s, {time.time() - results.begun:.0f} s so far")
        if left < 1:
            results.count("skipped", f"{name}: no time left")
            continue
        results.attempt(name, part, left)
        results.write()
        results.archive()
