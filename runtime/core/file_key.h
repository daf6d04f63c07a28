// A key of a configuration file as help and man pages show it.
#pragma once
#include <string>

namespace gradcast {

struct FileKey {
    std::string section;       // "[job]", or empty
    std::string key, value;    // value: the default, as written in the file; empty where there is none
    std::string help, range;   // range: what is allowed; empty where that is anything
};

}   // namespace gradcast
