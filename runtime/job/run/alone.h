// The machine under a job of one rank: no network, no thread; its protocols run on the trainer's thread whenever that waits.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/core/protocol.h"

namespace gradcast {

class Alone final : public Host {
public:
    uint64_t now_us() override;
    void post(uint16_t channel, const Event& event) override;
    Status wait(std::vector<Completion>* out, uint64_t until_us) override;
    void open_view(uint32_t number, std::span<const Attachment> attachments) override;
    Status close_view(uint64_t until_us) override;

private:
    void give(uint16_t channel, const Event& event);

    std::mutex mutex_;   // all below; protocols are called without it
    std::condition_variable changed_;
    std::map<uint16_t, Protocol*> protocols_;
    std::vector<std::pair<uint16_t, Event>> inbox_;
    std::vector<Completion> done_;
};

}   // namespace gradcast
