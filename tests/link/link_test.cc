// The link's suite: every test over both backends and all protections.
#include "tests/link/fixture.h"

#include <condition_variable>

namespace gradcast {
namespace {

constexpr uint64_t seed = 42;
constexpr uint64_t wait_us = 20'000'000;

/// Sends `count` packets of given sizes to every other rank, checks every byte of what comes.
class Chatter : public Protocol {
public:
    Chatter(Rank self, uint32_t ranks, std::vector<uint32_t> sizes, Landing landing = Landing::place)
        : self_(self), ranks_(ranks), sizes_(std::move(sizes)), landing_(landing), next_(ranks) {
        for (size_t i = 0; i < sizes_.size(); ++i) {
            payloads_.emplace_back(sizes_[i]);
            fill(payloads_.back(), seed, self, i);
        }
        bits_.resize((ranks + 63) / 64);
        for (Rank rank = 0; rank < ranks; ++rank)
            if (rank != self) bits_[rank / 64] |= uint64_t{1} << rank % 64;
    }

    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) switch (event.kind) {
                case Event::Kind::command:
                    start(actions);
                    [[fallthrough]];
                case Event::Kind::timer:   // so that who was told `later` is asked again
                    if (landing_ == Landing::later && !told_) actions.timers.push_back({1, actions.now_us + 500});
                    break;
                case Event::Kind::packet: check(*event.packet); break;
                case Event::Kind::sent:
                    EXPECT_EQ(event.id, ++sent_);   // in order, once each
                    EXPECT_TRUE(event.status.ok()) << event.status.what;
                    break;
                case Event::Kind::peer_up: ++ups_; break;
                case Event::Kind::peer_lost: lost_ = event.status, ++losses_; break;
                default: break;
            }
        if (!told_ && ((sent_ == sizes_.size() && received_ == sizes_.size() * (ranks_ - 1)) || losses_)) {
            told_ = true;
            Completion completion;
            completion.id = 1, completion.status = lost_;
            actions.completions.push_back(completion);
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (landing_ == Landing::later && ++asked_ % 3 != 0) return Landing::later;
        if (landing_ == Landing::lease && bytes <= lease_bytes_max) return Landing::lease;
        auto& slot = slots_[{packet.sender, body_of<MailBody>(packet).tag.get()}];
        slot.assign(bytes, std::byte{0xee});
        *place = {slot.data(), nullptr, bytes, 0};
        return Landing::place;
    }

    Rank self_;
    uint32_t ranks_;
    uint64_t sent_ = 0, received_ = 0, ups_ = 0, losses_ = 0;
    Status lost_;

private:
    void start(Actions& actions) {
        for (size_t i = 0; i < sizes_.size(); ++i) {
            MailBody body{};
            body.tag.set(i), body.total.set(sizes_[i]);
            Send send;
            send.to.bits = bits_.data(), send.type = PacketType::mail, send.body = body_bytes(body);
            send.payload = {payloads_[i].data(), nullptr, sizes_[i], 0};
            send.ticket = i + 1;
            actions.sends.push_back(send);
        }
    }
    void check(const Packet& packet) {
        uint64_t index = body_of<MailBody>(packet).tag.get();
        EXPECT_EQ(index, next_[packet.sender]++) << "from " << packet.sender;   // exactly once and in order
        ASSERT_LT(index, sizes_.size());
        ASSERT_EQ(packet.payload.bytes, sizes_[index]);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < packet.payload.bytes; ++i) wrong += packet.payload.host[i] != content(seed, packet.sender, index, i);
        EXPECT_EQ(wrong, 0u) << "packet " << index << " from " << packet.sender;
        slots_.erase({packet.sender, index});
        ++received_;
    }
    std::vector<uint32_t> sizes_;
    Landing landing_;
    std::vector<uint64_t> next_;
    std::vector<std::vector<std::byte>> payloads_;
    std::map<std::pair<Rank, uint64_t>, std::vector<std::byte>> slots_;
    std::vector<uint64_t> bits_;
    uint64_t asked_ = 0;
    bool told_ = false;
};

using Kind = std::tuple<LinkKind, Protect>;
class Link : public testing::TestWithParam<Kind> {
public:
    static LinkKind kind() { return std::get<0>(GetParam()); }
    static Protect protect() { return std::get<1>(GetParam()); }
    /// n nodes that all talk to each other; returns when every trainer has its completion.
    void talk(uint32_t n, const std::vector<uint32_t>& sizes, Landing landing, const std::function<void(LinkConfig&)>& change = {}) {
        std::vector<Node> nodes(n);
        std::vector<std::string> addresses(n);
        std::vector<std::unique_ptr<Chatter>> chatters;
        for (Rank rank = 0; rank < n; ++rank) {
            nodes[rank].listen(rank);
            addresses[rank] = nodes[rank].listener->address();
        }
        for (Rank rank = 0; rank < n; ++rank) {
            LinkConfig config = test_config(kind(), protect(), rank, addresses);
            if (change) change(config);
            ASSERT_TRUE(nodes[rank].open(config).ok());
            EXPECT_STREQ(nodes[rank].driver->name(), link_name(kind()));
            chatters.push_back(std::make_unique<Chatter>(rank, n, sizes, landing));
            nodes[rank].driver->attach(5, chatters.back().get());
        }
        for (Node& node : nodes) node.start();
        Event go;
        go.kind = Event::Kind::command;
        for (Node& node : nodes) node.driver->host().post(5, go);
        for (Node& node : nodes) {
            std::vector<Completion> completions;
            Status status = node.driver->host().wait(&completions, clock_us() + wait_us);
            ASSERT_TRUE(status.ok()) << status.what;
            EXPECT_TRUE(completions[0].status.ok()) << completions[0].status.what;
        }
        for (Node& node : nodes) node.stop();
        for (Rank rank = 0; rank < n; ++rank) {
            EXPECT_EQ(chatters[rank]->ups_, n - 1);
            EXPECT_EQ(nodes[rank].driver->counters().packets_refused, 0u);
        }
    }
};

TEST_P(Link, EverySizeArrivesWhole) {
    std::vector<uint32_t> sizes;
    for (uint32_t size : {0u, 1u, 3u, 15u, 16u, 17u, inline_bytes_max - 1, inline_bytes_max, inline_bytes_max + 1, 4096u, 16384u, 16385u, 65535u, 65536u,
                          65537u, segment_bytes_stream - 1, segment_bytes_stream})
        for (int again = 0; again < 3; ++again) sizes.push_back(size);
    for (Landing landing : {Landing::place, Landing::lease, Landing::later}) talk(2, sizes, landing);
}

TEST_P(Link, FourTalkToEachOther) {
    std::vector<uint32_t> sizes;
    for (uint32_t i = 0; i < 200; ++i) sizes.push_back(static_cast<uint32_t>(splitmix64(i) % 3000));
    talk(4, sizes, Landing::lease);
}

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
    static constexpr const char* names[] = {"none", "auth", "encrypt"};
    return std::string(link_name(std::get<0>(info.param))) + "_" + names[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(All, Link,
                         testing::Combine(testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                                          testing::Values(Protect::none, Protect::auth, Protect::encrypt)),
                         kind_name);

}   // namespace
}   // namespace gradcast
