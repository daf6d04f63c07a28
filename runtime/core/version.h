// The version of this build, in the output of every command and every answer of the control plane.
#pragma once

namespace gradcast {

constexpr const char* version_text = "0.1.0";

}   // namespace gradcast
