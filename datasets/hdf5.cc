#include "datasets/hdf5.h"

#include <cstdlib>

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

hid_t hdf5_type(Element element) {
    switch (element) {
        case Element::u8: return H5T_STD_U8LE;
        case Element::u16: return H5T_STD_U16LE;
        case Element::u32: return H5T_STD_U32LE;
        case Element::f32: return H5T_IEEE_F32LE;
    }
    return H5I_INVALID_HID;
}

bool hdf5_element(hid_t type, Element* element) {
    for (const Element each : {Element::u8, Element::u16, Element::u32, Element::f32})
        if (H5Tequal(type, hdf5_type(each)) > 0) return *element = each, true;
    return false;
}

std::string hdf5_type_name(hid_t type) {
    const H5T_class_t kind = H5Tget_class(type);
    if (kind == H5T_STRING) return H5Tis_variable_str(type) > 0 ? "text of variable length" : "text";
    if (kind != H5T_INTEGER && kind != H5T_FLOAT) return "no number";
    const char* sign = kind == H5T_FLOAT ? "float" : H5Tget_sign(type) == H5T_SGN_NONE ? "uint" : "int";
    return (H5Tget_size(type) > 1 && H5Tget_order(type) == H5T_ORDER_BE ? "big-endian " : "") + std::string(sign) +
           std::to_string(8 * H5Tget_size(type));
}

std::string hdf5_filter_names(hid_t creation, bool* readable) {
    std::string names;
    *readable = true;
    const int count = H5Pget_nfilters(creation);
    for (int i = 0; i < count; ++i) {
        char name[64] = "";
        size_t none = 0;
        const H5Z_filter_t filter = H5Pget_filter2(creation, static_cast<unsigned>(i), nullptr, &none, nullptr, sizeof name, name, nullptr);
        *readable = *readable && H5Zfilter_avail(filter) > 0;
        names += (i == 0 ? "" : " and ") + (name[0] ? std::string(name) : "filter " + std::to_string(filter));
    }
    return names;
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

int hdf5_open_error(const std::string& reason) {
    const std::string_view mark = "errno = ";   // no field of an error of HDF5 has the number
    const size_t at = reason.starts_with("unable to open file") ? reason.find(mark) : reason.npos;
    return at == reason.npos ? 0 : std::atoi(reason.c_str() + at + mark.size());
}

}   // namespace gradcast
