// The wire form of what is said about views.
#include <gtest/gtest.h>

#include "runtime/job/report/view_records.h"
#include "runtime/view/messages.h"

namespace gradcast {
namespace {

using Kind = ViewMessage::Kind;

AgreedView some_view() {
    return {.number = ballot_of(3, NodeId{2}),
            .parent = ballot_of(1, NodeId{0}),
            .deadline_us = 4'000'000,
            .exchange = {"coded-rs", 2, 2, 1},
            .action = {ViewAction::Kind::drain, NodeId{1}, {}},
            .members = {{NodeId{0}, 7, 1}, {NodeId{2}, 1, 300}, {NodeId{5}, UINT64_C(1) << 60, 0}}};
}

ViewMessage some_message(Kind kind) {
    ViewMessage message;
    message.kind = kind;
    message.from = NodeId{2};
    message.incarnation = 9;
    message.view = ballot_of(1, NodeId{0});
    message.ballot = ballot_of(4, NodeId{2});
    switch (kind) {
        case Kind::suspect:
            message.node = NodeId{3};
            message.why = Suspicion::command;
            message.covered = true;
            message.action = {ViewAction::Kind::exchange, {}, {"ring", 2, 1, 0}};
            break;
        case Kind::promise:
            message.has_state = message.ready = true;
            message.reach = {5, 1};
            message.accepted = ballot_of(3, NodeId{2});
            message.value = some_view();
            break;
        case Kind::accept: message.value = some_view(); break;
        case Kind::view:
            message.value = some_view();
            message.view = message.value.number;
            break;
        case Kind::state:
            message.stage = ViewStage::ready;
            message.state = {true, 17, 18, 19, 20};
            message.ready_digest = 21;
            break;
        case Kind::prepare:
        case Kind::nack:
        case Kind::accepted:
        case Kind::join: break;
    }
    return message;
}

constexpr Kind kinds[] = {Kind::suspect,  Kind::prepare, Kind::promise, Kind::nack, Kind::accept,
                          Kind::accepted, Kind::view,    Kind::state,   Kind::join};

TEST(ViewMessages, ComeBackAsTheyWere) {
    for (const Kind kind : kinds) {
        const ViewMessage said = some_message(kind);
        const std::vector<std::byte> bytes = view_message_write(said);
        ViewMessage read;
        ASSERT_TRUE(view_message_parse(bytes, &read)) << static_cast<int>(kind);
        EXPECT_EQ(view_message_write(read), bytes);
        EXPECT_EQ(read.from, said.from);
        EXPECT_EQ(read.incarnation, said.incarnation);
        EXPECT_EQ(read.view, said.view);
        EXPECT_EQ(read.ballot, said.ballot);
        EXPECT_EQ(read.value, said.value);
        EXPECT_EQ(read.action, said.action);
        EXPECT_EQ(read.state, said.state);
        EXPECT_EQ(read.reach, said.reach);
        EXPECT_EQ(read.ready_digest, said.ready_digest);
    }
}

// Of a member that has not got the job's initial values yet.
TEST(ViewMessages, InitialValuesComeBack) {
    ViewMessage said = some_message(Kind::state);
    said.state = {.digest = 18, .initial = true};
    ViewMessage read;
    ASSERT_TRUE(view_message_parse(view_message_write(said), &read));
    EXPECT_EQ(read.state, said.state);
}

TEST(ViewMessages, AreRefusedCutOrWithMoreAtTheEnd) {
    for (const Kind kind : kinds) {
        std::vector<std::byte> bytes = view_message_write(some_message(kind));
        ViewMessage read;
        for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(view_message_parse(std::span(bytes).first(size), &read)) << size;
        bytes.push_back(std::byte{0});
        EXPECT_FALSE(view_message_parse(bytes, &read));
    }
}

TEST(ViewMessages, AreRefusedWithFieldsOutOfRange) {
    auto refused = [](ViewMessage message) {
        ViewMessage read;
        return !view_message_parse(view_message_write(message), &read);
    };
    auto with = [](Kind kind, auto change) {
        ViewMessage message = some_message(kind);
        change(message);
        return message;
    };
    EXPECT_TRUE(refused(with(Kind::join, [](ViewMessage& m) { m.from = NodeId{nodes_max}; })));
    EXPECT_TRUE(refused(with(Kind::join, [](ViewMessage& m) { m.incarnation = 0; })));
    EXPECT_TRUE(refused(with(Kind::prepare, [](ViewMessage& m) { m.ballot = 0; })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.members.clear(); })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.members[1].node = NodeId{0}; }))) << "a node twice";
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.members[1].incarnation = 0; })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.number = 0; })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.deadline_us = 0; })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.exchange.name = "Ring"; })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.exchange.name = ""; })));
    EXPECT_TRUE(refused(with(Kind::accept, [](ViewMessage& m) { m.value.exchange.m = 0; })));
    EXPECT_TRUE(refused(with(Kind::view, [](ViewMessage& m) { m.view += 1; })));
    EXPECT_TRUE(refused(with(Kind::promise, [](ViewMessage& m) { m.accepted = m.ballot; })));
    EXPECT_TRUE(refused(with(Kind::promise, [](ViewMessage& m) { m.reach.resize(nodes_max / 64 + 1); })));
    EXPECT_TRUE(refused(with(Kind::suspect, [](ViewMessage& m) { m.why = Suspicion::none; })));
    EXPECT_TRUE(refused(with(Kind::suspect, [](ViewMessage& m) { m.action = {}; })));
    EXPECT_TRUE(refused(with(Kind::state, [](ViewMessage& m) { m.state.applied = UINT64_C(1) << 32; })));
    EXPECT_TRUE(refused(with(Kind::state, [](ViewMessage& m) { m.state = {.applied = 1, .initial = true}; })));
}

TEST(ViewMessages, OfTheLargestJobFit) {
    ViewMessage message = some_message(Kind::promise);
    message.reach.resize(nodes_max / 64);
    message.value.members.clear();
    for (uint32_t each = 0; each < ranks_max; ++each) message.value.members.push_back({NodeId{each}, 1, 1});
    const std::vector<std::byte> bytes = view_message_write(message);
    EXPECT_LE(bytes.size(), view_message_bytes_max);
    ViewMessage read;
    EXPECT_TRUE(view_message_parse(bytes, &read));
}

TEST(ViewRecords, GoAsTheyCame) {
    std::vector<ViewRecord> views = view_records_with({}, {.first_step = 1, .members = {"a", "b"}});
    views = view_records_with(
        views, {.first_step = 9, .members = {"a", "c"}, .joined = {"c"}, .departed = {"b"}, .why = "b silent", .stood_us = 7});
    EXPECT_EQ(views[1].number, 2u);
    EXPECT_GT(views[1].began_unix, 0u);
    const std::vector<std::byte> bytes = view_records_write(views);
    std::vector<ViewRecord> come;
    ASSERT_TRUE(view_records_parse(bytes, &come));
    ASSERT_EQ(come.size(), 2u);
    EXPECT_EQ(come[1].departed, std::vector<std::string>{"b"});
    EXPECT_EQ(view_records_write(come), bytes);
    size_t whole = 0;   // records
    for (size_t size = 0; size < bytes.size(); ++size) whole += view_records_parse(std::span(bytes).first(size), &come);
    EXPECT_EQ(whole, 2u) << "none and the first alone";
}

TEST(ViewRecords, ANodeThatIsSilentAgainAndAgainIsTold) {
    std::vector<ViewRecord> views = view_records_with({}, {.first_step = 1, .members = {"a", "b", "c"}});
    std::string advice;
    for (int round = 1; round <= 4; ++round) {
        // Another node of nearly the same name, and another reason, do not count.
        views = view_records_with(views, {.members = {"a", "bc"}, .departed = {"b", "c"}, .why = "b drained, c silent"});
        EXPECT_EQ(view_records_advice(views).empty(), round != 3) << round;
        if (round == 3) advice = view_records_advice(views);
        views = view_records_with(views, {.members = {"a", "b", "c"}, .joined = {"b", "c"}, .why = "b joins, c joins"});
        EXPECT_EQ(view_records_advice(views), "");
    }
    EXPECT_EQ(advice.find("node c has been given up 3 times and came back: where the network loses packets"), 0u) << advice;
    for (const char* way : {"coded-rs", "transport.kind = \"tcp\"", "deadline"}) EXPECT_NE(advice.find(way), std::string::npos) << advice;
}

TEST(ViewRecords, PatienceDoublesAndHalves) {
    std::vector<ViewRecord> views = view_records_with({}, {.first_step = 1, .members = {"a", "b"}});
    EXPECT_EQ(view_records_patience(views, "b", 50), 1u);
    views = view_records_with(views, {.first_step = 10, .members = {"a"}, .departed = {"b"}, .why = "b drained"});
    EXPECT_EQ(view_records_patience(views, "b", 50), 1u);
    for (const auto& [why, factor] : {std::pair{why_silent, 2u}, {why_stuck, 4u}, {why_unreachable, 8u}, {why_silent, 8u}}) {
        views = view_records_with(views, {.first_step = 50, .members = {"a"}, .departed = {"b"}, .why = fmt::format("b {}, c joins", why)});
        EXPECT_EQ(view_records_patience(views, "b", 50), factor);
        EXPECT_EQ(view_records_patience(views, "a", 50), 1u);
    }
    for (const auto& [step, factor] : {std::pair{149u, 8u}, {150u, 4u}, {250u, 2u}, {350u, 1u}, {1u << 30, 1u}})
        EXPECT_EQ(view_records_patience(views, "b", step), factor) << step;
}

TEST(ViewRecords, ThoseOfALongJobFit) {
    std::vector<ViewRecord> views;
    const ViewRecord large{.members = std::vector<std::string>(100, std::string(60, 'n')), .why = "x"};
    for (int i = 0; i < 300; ++i) views = view_records_with(std::move(views), large);
    EXPECT_EQ(views.back().number, 300u);
    const std::vector<std::byte> bytes = view_records_write(views);
    EXPECT_LE(bytes.size(), view_records_bytes_max);
    std::vector<ViewRecord> come;
    ASSERT_TRUE(view_records_parse(bytes, &come));
    ASSERT_FALSE(come.empty());
    EXPECT_EQ(come.back().number, 300u);
}

}   // namespace
}   // namespace gradcast
