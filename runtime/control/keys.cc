#include "runtime/control/keys.h"

#include <algorithm>

namespace gradcast {
namespace {

constexpr const char* client_form = "<name> <view|submit|admin> <64 hex digits>";

}   // namespace

const char* role_name(Role role) {
    switch (role) {
        case Role::none: return "none";
        case Role::view: return "view";
        case Role::submit: return "submit";
        case Role::admin: return "admin";
    }
    return "?";
}

bool role_parse(std::string_view text, Role* role) {
    for (Role each : {Role::view, Role::submit, Role::admin})
        if (text == role_name(each)) {
            *role = each;
            return true;
        }
    return false;
}

ControlKey control_key(const ClusterKey& key) {
    return {key.id, Role::admin, "cluster:" + key.id, key_derive(key.secret, "gradcast control")};
}

ControlKey client_key(std::string name, Role role, const std::array<uint8_t, 32>& secret) {
    std::string identity = "client:" + name;
    return {std::move(name), role, std::move(identity), key_derive(secret, "gradcast control")};
}

Status client_keys_read(const std::string& path, std::vector<ControlKey>* keys) {
    std::vector<KeyLine> lines;
    GC_TRY(key_lines_read(path, "file of client keys", client_form, 2, 2, &lines));
    std::vector<ControlKey> result;
    for (const KeyLine& line : lines) {
        Role role = Role::none;
        if (!role_parse(line.words[1], &role))
            return fail(Code::invalid, "{}:{}: the role {} is none of view, submit, admin", path, line.number, line.words[1]);
        if (std::any_of(result.begin(), result.end(), [&](const ControlKey& each) { return each.name == line.words[0]; }))
            return fail(Code::invalid, "{}:{}: the name {} is there twice", path, line.number, line.words[0]);
        result.push_back(client_key(line.words[0], role, line.secret));
    }
    *keys = std::move(result);
    return {};
}

Status own_key_read(const std::string& path, ControlKey* key) {
    std::vector<KeyLine> lines;
    GC_TRY(key_lines_read(path, "key", "<id> <64 hex digits>, or <name> <role> <64 hex digits>", 1, 2, &lines));
    const KeyLine& line = lines[0];
    if (line.words.size() == 1) return *key = control_key({line.words[0], line.secret}), Status{};
    Role role = Role::none;
    if (!role_parse(line.words[1], &role))
        return fail(Code::invalid, "{}:{}: the role {} is none of view, submit, admin", path, line.number, line.words[1]);
    *key = client_key(line.words[0], role, line.secret);
    return {};
}

}   // namespace gradcast
