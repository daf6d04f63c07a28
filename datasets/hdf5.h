// For all users of the HDF5 library: one lock (Debian's serial build is not thread-safe), ids that close themselves, the library's reason
// for an error.
#pragma once
#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "runtime/core/element.h"

namespace gradcast {

/// Hold one during every call into HDF5.  Closing an id is a call too, so declare the lock before the ids.  Turns off the library's own
/// printing of errors.
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
        if (this != &other) {
            close();
            id_ = std::exchange(other.id_, H5I_INVALID_HID);
        }
        return *this;
    }
    ~Hid() { close(); }
    hid_t get() const { return id_; }
    explicit operator bool() const { return id_ >= 0; }
    /// False if the library could not close it; for a file, data may then be lost.
    bool close() { return id_ < 0 || H5Idec_ref(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

private:
    hid_t id_ = H5I_INVALID_HID;
};

/// Opens the HDF5 file behind an open descriptor: the same file that was checked.  `flags` as for H5Fopen.
Hid hdf5_open(int fd, unsigned flags);

/// The type of such elements in files and in memory.
hid_t hdf5_type(Element element);
/// False: elements of another type.  *element: of a type in files.
bool hdf5_element(hid_t type, Element* element);
/// "float32", "int64", "big-endian uint16", "text of variable length".
std::string hdf5_type_name(hid_t type);
/// The names of a data set's filters, as "shuffle and lzf"; *readable: this library has all of them.
std::string hdf5_filter_names(hid_t creation, bool* readable);

/// The innermost message of the library about the call that has just failed.  The caller holds the lock.
std::string hdf5_reason();

/// The error of the system because of which hdf5_open() has failed with this hdf5_reason(), as EMFILE; 0: the content of the file is the
/// reason.
int hdf5_open_error(const std::string& reason);

}   // namespace gradcast
