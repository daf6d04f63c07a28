// The libraries of CUDA that libgradcast_cuda.so names: cuDNN and cuBLAS.  They are the host's, wherever its administrator or its user has
// installed them.
#pragma once
#include <string>
#include <vector>

namespace gradcast {

struct CudaLibrary {
    std::string name;   // libcudnn.so.9
    std::string path;   // empty: it was not found
};

/// Opens the libraries of CUDA that the file `module` names, so that opening `module` itself finds them.  Each is searched where the loader
/// searches (LD_LIBRARY_PATH, then ld.so.cache), then in the folders nvidia/*/lib of pip, in this order below VIRTUAL_ENV, CONDA_PREFIX,
/// $HOME/.local, /usr/local and /usr.  They stay open.  Returns each library, in the module's order; none where `module` cannot be read.
/// Takes the time of reading them, seconds where a disk is cold.  Any thread.
std::vector<CudaLibrary> cuda_libraries_open(const std::string& module);

/// The names of `libraries` that were not found, as a part of a sentence, and how to get them.  Empty: all were found.
std::string cuda_libraries_missing(const std::vector<CudaLibrary>& libraries);

/// The path of the driver's library, which stays open.  Empty: this node has no driver for its GPU.  Any thread.
std::string cuda_driver_open();

}   // namespace gradcast
