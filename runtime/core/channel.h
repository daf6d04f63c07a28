// Which protocols a rank has.
#pragma once
#include <cstdint>

namespace gradcast {

/// Channels of a view, the same at every rank.
enum class Channel : uint16_t { job = 0, gradient = 1, mail = 2, view = 3, broadcast = 4, edge = 5 };   // view: of none, see ViewProtocol

}   // namespace gradcast
