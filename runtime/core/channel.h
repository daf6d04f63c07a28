// Which protocols a rank has: their channels of a view, the same at every rank.
#pragma once
#include <cstdint>

namespace gradcast {

constexpr uint16_t job_channel = 0, gradient_channel = 1, mail_channel = 2, broadcast_channel = 4, edge_channel = 5;
constexpr uint16_t view_channel = 3;   // of no view, see ViewProtocol

}   // namespace gradcast
