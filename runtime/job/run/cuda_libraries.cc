#include "runtime/job/run/cuda_libraries.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <cstdlib>
#include <cstring>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

/// The value at `at`; false where the file is shorter.
template <class Value>
bool value_at(std::string_view file, uint64_t at, Value* value) {
    if (at > file.size() || file.size() - at < sizeof(Value)) return false;
    std::memcpy(value, file.data() + at, sizeof(Value));
    return true;
}

/// The names of the libraries that an ELF file names.  None where it is no ELF file of 64 bits.
std::vector<std::string> needed(std::string_view file) {
    Elf64_Ehdr header;
    if (!value_at(file, 0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
        return {};
    std::vector<Elf64_Phdr> segments(header.e_phnum);
    for (size_t i = 0; i < segments.size(); ++i)
        if (!value_at(file, header.e_phoff + i * sizeof(Elf64_Phdr), &segments[i])) return {};
    const auto offset_of = [&](uint64_t address) {   // in the file
        for (const Elf64_Phdr& each : segments)
            if (each.p_type == PT_LOAD && address >= each.p_vaddr && address - each.p_vaddr < each.p_filesz)
                return address - each.p_vaddr + each.p_offset;
        return uint64_t{file.size()};
    };
    std::vector<uint64_t> names;
    uint64_t texts = file.size();
    for (const Elf64_Phdr& each : segments) {
        Elf64_Dyn entry{};
        for (uint64_t at = each.p_offset; each.p_type == PT_DYNAMIC && value_at(file, at, &entry) && entry.d_tag != DT_NULL;
             at += sizeof entry) {
            if (entry.d_tag == DT_NEEDED) names.push_back(entry.d_un.d_val);
            if (entry.d_tag == DT_STRTAB) texts = offset_of(entry.d_un.d_ptr);
        }
    }
    std::vector<std::string> found;
    for (const uint64_t name : names) {
        if (name >= file.size() - std::min<uint64_t>(texts, file.size())) continue;
        const std::string_view rest = file.substr(texts + name);
        found.emplace_back(rest.substr(0, rest.find('\0')));
    }
    return found;
}

/// Opens it; its path, or empty.
std::string opened(const std::string& name) {
    void* handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);   // never closed
    link_map* map = nullptr;
    if (!handle || ::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return {};
    return map->l_name;
}

std::string opened_anywhere(const std::string& name) {
    std::string path = opened(name);
    std::vector<std::string> bases;
    for (const auto& [variable, below] : {std::pair{"VIRTUAL_ENV", ""}, {"CONDA_PREFIX", ""}, {"HOME", "/.local"}})
        if (const char* set = std::getenv(variable); set && *set == '/') bases.push_back(std::string(set) + below);
    bases.insert(bases.end(), {"/usr/local", "/usr"});
    for (const std::string& base : bases) {
        std::vector<std::string> files;
        if (!path.empty() || !file_glob(base + "/lib/python3*/*-packages/nvidia/*/lib/" + name, &files, base.size() + 1).ok()) continue;
        for (const std::string& file : files)
            if (path.empty()) path = opened(file);
    }
    return path;
}

}   // namespace

std::vector<CudaLibrary> cuda_libraries_open(const std::string& module) {
    std::string file;
    std::vector<CudaLibrary> all;
    if (!file_read(module, &file).ok()) return all;
    for (const std::string& name : needed(file)) {
        if (!name.starts_with("libcu")) continue;
        all.push_back({name, opened_anywhere(name)});
        // cuDNN opens the compiler by its name, and pip has it in another folder.
        constexpr std::string_view blas = "libcublasLt.so.";
        if (name.starts_with(blas)) (void)opened_anywhere("libnvrtc.so." + name.substr(blas.size()));
    }
    return all;
}

std::string cuda_libraries_missing(const std::vector<CudaLibrary>& libraries) {
    std::vector<std::string> missing;
    for (const CudaLibrary& each : libraries)
        if (each.path.empty()) missing.push_back(each.name);
    if (missing.empty()) return {};
    return fmt::format(
        "{} {} neither in LD_LIBRARY_PATH, in ld.so.cache nor in a folder nvidia of pip: install cuDNN and CUDA of these "
        "versions, or name their folder in LD_LIBRARY_PATH",
        fmt::join(missing, " and "), missing.size() == 1 ? "is" : "are");
}

std::string cuda_driver_open() { return opened("libcuda.so.1"); }

}   // namespace gradcast
