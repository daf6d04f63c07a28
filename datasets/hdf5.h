// What all users of the HDF5 library share: one lock (Debian's serial build is not thread-safe), ids that close themselves, the library's
// reason for an error.
#pragma once
#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace gradcast {

/// Every call into HDF5 in the process is made while one of these is held, the closing of ids included, so it is declared before them.
/// The library's own printing of errors is off meanwhile.
class Hdf5Lock {
public:
    Hdf5Lock();

private:
    std::lock_guard<std::mutex> lock_;
};

/// Any HDF5 id: file, data set, attribute, type, space, property list.
class Hid {
public:
    Hid() = default;
    explicit Hid(hid_t id) : id_(id) {}
    Hid(Hid&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
    Hid& operator=(Hid&& other) noexcept {
        if (this != &other) close(), id_ = std::exchange(other.id_, H5I_INVALID_HID);
        return *this;
    }
    ~Hid() { close(); }
    hid_t get() const { return id_; }
    explicit operator bool() const { return id_ >= 0; }
    /// False when the library could not close it, which for a file means that something was not written.
    bool close() { return id_ < 0 || H5Idec_ref(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

private:
    hid_t id_ = H5I_INVALID_HID;
};

/// Opens the HDF5 file of a descriptor that is open, so that it is the one that was checked; `flags` as H5Fopen has them.
Hid hdf5_open(int fd, unsigned flags);

/// What the library says about the call that has just failed: its innermost message.  While the lock is held.
std::string hdf5_reason();

}   // namespace gradcast
