"""The archive for a machine where nothing can be built: stripped programs, their libraries except the C library, reference numbers, data."""
import os
import re
import shutil
import subprocess
import sys

archive_max = 50 << 20   # bytes
glibc_max = (2, 36)
programs = ["gradcastd", "gradcastctl", "gradcast-bench", "libgradcast_cuda.so", "tests/cuda-device"]
scripts = ["tools/device-check", "bench/rivals/fair.py", "bench/rivals/torch_gpu.py", "bench/rivals/torch_nets.py"]
# Provided by the target machine.
there = re.compile(r"lib(c|m|dl|rt|pthread|resolv|cuda|cudnn\w*|cublas\w*|cudart|nvrtc)\.so|ld-linux")


def out(words):
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def glibc_of(path):
    """The newest version of the C library's symbols that a file asks for."""
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", out(["objdump", "-p", path]))
    return max(((int(a), int(b)) for a, b in versions), default=(0, 0))


def pack(options, root):
    to, build = os.path.abspath(options.pack), os.path.abspath(options.build)
    shutil.rmtree(to, ignore_errors=True)
    mnist = [os.path.join(options.data, "mnist", name) for name in ("train.h5", "test.h5")]
    for path in [os.path.join(build, name) for name in programs] + mnist:
        if not os.path.exists(path):
            sys.exit(f"device-check: {path} is missing: make device-pack makes it where nvcc, cuDNN and MNIST are")
    for folder in ["lib/c++", "build/tests", "tools", "bench/rivals", "data/mnist"]:
        os.makedirs(os.path.join(to, folder))
    packed = []
    for name in programs:
        source, target = os.path.join(build, name), os.path.join(to, "build", name)
        subprocess.run(["strip", "--strip-unneeded", "-o", target, source], check=True)
        packed.append(target)
        for library, where in re.findall(r"^\s*(\S+) => (not found|/\S+)", out(["ldd", source]), re.M):
            if there.match(library):
                continue
            if where == "not found":
                sys.exit(f"device-check: {name} needs {library}, which the loader does not find here")
            packed.append(shutil.copy(where, os.path.join(to, "lib", "c++" if re.match(r"lib(stdc\+\+|gcc_s)\.", library) else "")))
    new = sorted({(os.path.basename(path), glibc_of(path)) for path in packed if glibc_of(path) > glibc_max})
    if new:
        sys.exit(f"device-check: newer than glibc 2.36: {', '.join(f'{name} needs {a}.{b}' for name, (a, b) in new)}")
    for name in scripts:
        shutil.copy(os.path.join(root, name), os.path.join(to, name))
    shutil.copytree(os.path.join(root, "tools", "device"), os.path.join(to, "tools", "device"), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(os.path.join(root, "tests", "nn", "reference"), os.path.join(to, "tests", "nn", "reference"))   # reference numbers from PyTorch
    for path in mnist:
        shutil.copy(path, os.path.join(to, "data", "mnist"))
    size = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(to) for name in names)
    archive = shutil.make_archive(to, "gztar", os.path.dirname(to), os.path.basename(to))
    bytes_packed = os.path.getsize(archive)
    newest = max(glibc_of(path) for path in packed)
    print(f"{archive}: {bytes_packed / 2**20:.1f} MiB, unpacked {size / 2**20:.1f} MiB, needs glibc {newest[0]}.{newest[1]}; there: "
          f"tar xzf {os.path.basename(archive)}; {os.path.basename(to)}/tools/device-check", flush=True)  # fmt: skip
    if bytes_packed > archive_max:
        sys.exit(f"device-check: {archive} has {bytes_packed / 2**20:.1f} MiB, more than {archive_max >> 20}")
    return 0
