// A host beneath one rank's trainer that puts protocols of the test's own before those of its sessions.
#pragma once
#include <functional>
#include <vector>

#include "runtime/core/protocol.h"

namespace gradcast {

struct WrappedHost : Host {
    /// The protocol that is to stand on the channel in place of `inner`; every time a view is opened.
    using Wrap = std::function<Protocol*(uint16_t channel, Protocol* inner)>;
    explicit WrappedHost(Host& host, Wrap wrapping = {}) : inner(host), wrap(std::move(wrapping)) {}
    uint64_t now_us() override { return inner.now_us(); }
    void post(uint16_t channel, const Event& event) override { inner.post(channel, event); }
    void open_view(uint32_t number, std::span<const Attachment> attachments) override {
        std::vector<Attachment> wrapped(attachments.begin(), attachments.end());
        for (Attachment& each : wrapped)
            if (wrap) each.protocol = wrap(each.channel, each.protocol);
        inner.open_view(number, wrapped);
    }
    Status close_view(uint64_t until_us) override { return inner.close_view(until_us); }
    Status wait(std::vector<Completion>* out, uint64_t until_us) override { return inner.wait(out, until_us); }
    void spend(uint64_t us) override { inner.spend(us); }
    Host& inner;
    const Wrap wrap;
};

}   // namespace gradcast
