#include "datasets/hdf5.h"

namespace gradcast {

namespace {
std::mutex& hdf5_mutex() {
    static std::mutex mutex;
    return mutex;
}
}   // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex()) {
    // HDF5's exit handler crashes when it flushes a file that could not be closed (full disk).
    static const herr_t no_exit_handler = H5dont_atexit();
    (void)no_exit_handler;
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hid hdf5_open(int fd, unsigned flags) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);   // HDF5 opens by path only
    return Hid(H5Fopen(path.c_str(), flags, H5P_DEFAULT));
}

std::string hdf5_reason() {
    std::string reason = "no reason given";
    auto first = [](unsigned n, const H5E_error2_t* error, void* text) -> herr_t {
        if (n == 0 && error->desc) *static_cast<std::string*>(text) = error->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first, &reason);
    return reason;
}

}   // namespace gradcast
