// The version of this build, told by every command and in every answer of the control plane.
#pragma once

namespace gradcast {

constexpr const char* version_text = "0.1.0";

}   // namespace gradcast
