#include "runtime/core/json_bounds.h"

namespace gradcast {

Status json_bounds(std::string_view text, size_t depth_max, size_t values_max) {
    size_t depth = 0, values = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted && c == '\\') ++i;
        else if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == ',' || c == '[' || c == '{') ++values;
        if ((c == '[' || c == '{') && ++depth > depth_max) return fail(Code::invalid, "it is nested deeper than {} levels", depth_max);
        if ((c == ']' || c == '}') && depth > 0) --depth;
        if (values > values_max) return fail(Code::invalid, "it has more than {} values", values_max);
    }
    return {};
}

}   // namespace gradcast
