"""The same environment for every rival written in Python: call settle() before torch is imported, as its libraries read the environment once."""
import ctypes
import os
import re

settings = ("OPENBLAS_", "GOTO_", "MKL_", "OMP_", "KMP_", "GOMP_", "DNNL_", "ONEDNN_", "ATEN_", "BLIS_")


def core_type():
    """The kernels that OpenBLAS has for this CPU's instructions.  OpenBLAS itself takes its oldest ones on a CPU that is newer than it."""
    with open("/proc/cpuinfo") as file:
        flags = next((set(line.split()) for line in file if line.startswith("flags")), set())
    return next((name for flag, name in (("avx512_bf16", "Cooperlake"), ("avx512f", "SkylakeX"), ("avx2", "Haswell")) if flag in flags), None)


def settle(threads):
    """Clears the user's settings of BLAS, OpenMP and oneDNN, so that each library has its best kernels; sets threads, which sleep while they wait."""
    for name in [name for name in os.environ if name.startswith(settings)]:
        del os.environ[name]
    os.environ.update(OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
    if core_type():
        os.environ["OPENBLAS_CORETYPE"] = core_type()


def kernels():
    """What PyTorch computes with here, as "OpenBLAS Cooperlake, ATen AVX2, oneDNN v2.6.3"."""
    import torch

    said = torch.__config__.show()
    found = [f"{name} {match[1]}" for name, pattern in (("ATen", r"CPU capability usage: (\S+)"), ("oneDNN", r"MKL-DNN (\S+)"), ("MKL", r"Math Kernel Library Version (\S+)"))
             if (match := re.search(pattern, said))]  # fmt: skip
    with open("/proc/self/maps") as maps:
        blas = sorted({line.split()[-1] for line in maps if "libopenblas" in line})
    for path in blas[:1]:
        name = ctypes.CDLL(path).openblas_get_corename
        name.restype = ctypes.c_char_p
        found.insert(0, "OpenBLAS " + name().decode())
    return ", ".join(found)
