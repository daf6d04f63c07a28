#include "runtime/core/identity.h"

#include <charconv>

#include "runtime/core/crypto.h"

namespace gradcast {

std::string job_id_text(const JobId& id) { return hex(id); }

bool job_id_parse(std::string_view text, JobId* id) {
    if (text.size() != 2 * id->size()) return false;
    for (size_t i = 0; i < id->size(); ++i) {
        const char* digits = text.data() + 2 * i;
        if (std::from_chars(digits, digits + 2, (*id)[i], 16).ptr != digits + 2) return false;
    }
    return job_id_text(*id) == text;
}

}   // namespace gradcast
