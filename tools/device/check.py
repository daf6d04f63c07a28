"""What both stages need: where programs, libraries and data are, and on which device they run."""
import glob
import os
import re
import shutil
import sys
from ctypes.util import find_library

from device.run import Children, Results, Trouble, find_torch


def library_path(root):
    """The loader's search path: the packed libraries, then cuDNN and cuBLAS of CUDA or of PyTorch's packages.

    The packed C++ library is used only where there is none: NVIDIA's libraries and tools may need a newer one.
    """
    folders = [os.path.join(root, "lib")] + ([] if find_library("stdc++") else [os.path.join(root, "lib", "c++")]) + sorted(glob.glob("/usr/local/cuda*/lib64"))
    for site in sys.path:
        folders += sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")))
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return ":".join([folder for folder in folders if os.path.isdir(folder)] + ([known] if known else []))


class Check:
    cells = {"lenet5": [100], "mlp": [100], "resnet9": [1024, 100], "nin": [1024, 100]}   # nets and batches that PyTorch is timed with
    host_tests = "CudaSmoke.*:Words.*"   # of the stand-in; make test runs all of them by themselves

    def __init__(self, options, root):
        self.root, self.host, self.silence, self.build = root, options.host, options.silence, os.path.abspath(options.build)
        self.given_data = options.data
        programs = os.path.join(self.build, "host") if self.host else self.build
        self.ctl, self.bench = os.path.join(programs, "gradcastctl"), os.path.join(programs, "gradcast-bench")
        self.tests = os.path.join(self.build, "tests", "cuda" if self.host else "cuda-device")
        self.packed = [self.ctl, os.path.join(programs, "gradcastd"), self.bench, os.path.join(programs, "libgradcast_cuda.so"), self.tests]
        self.library_path = library_path(root)
        self.work = options.work or os.path.join(self.build, "device-check")
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)
        self.compiled = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(self.work, "inductor"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.python, self.torch = (None, None) if self.host else find_torch()

    def open(self, out, device):
        name = re.sub(r"[^a-z0-9]+", "-", device.split(",")[0].lower()).strip("-")
        self.results = Results(out, name, self.work)
        self.results.report.update(host=self.host, gpu=device)
        environment = {"LD_LIBRARY_PATH": self.library_path, "OMP_NUM_THREADS": "1"}
        if self.host:   # one GPU, as on the machine that this rehearses
            environment["GC_CUDA_HOST_DEVICES"] = os.environ.get("GC_CUDA_HOST_DEVICES", "1")
        self.children = Children(self.results, self.root, environment)

    def need_programs(self):
        for path in self.packed:
            if not os.path.exists(path):
                raise Trouble(f"{path} is missing: make device-check builds it where nvcc and cuDNN are")

    def data(self):
        """The folder of MNIST's shards; on the stand-in any samples suffice."""
        folder = self.work if self.host else os.path.abspath(self.given_data)
        if not os.path.exists(os.path.join(folder, "mnist", "train.h5")):
            raise Trouble(f"{folder}/mnist/train.h5 is missing: gradcastctl import mnist, then --data")
        return folder

    def import_samples(self):
        self.children.must("import", [self.ctl, "import", "fashion-mnist", "--out", os.path.join(self.work, "mnist")], 60)
