// The wire form of what is said about views.
#include <gtest/gtest.h>

#include "runtime/job/report/view_records.h"
#include "runtime/view/messages.h"

namespace gradcast {
namespace {

AgreedView some_view() {
    return {.number = ballot_of(3, NodeId{2}),
            .parent = ballot_of(1, NodeId{0}),
            .deadline_us = 4'000'000,
            .exchange = {"coded-rs", 2, 2, 1},
            .action = {ViewAction::Kind::drain, NodeId{1}, {}},
            .members = {{NodeId{0}, 7, 1}, {NodeId{2}, 1, 300}, {NodeId{5}, UINT64_C(1) << 60, 0}}};
}

ViewMessage with(ViewMessage::What what) {
    return {.from = NodeId{2}, .incarnation = 9, .view = ballot_of(1, NodeId{0}), .what = std::move(what)};
}

constexpr Ballot some_ballot = ballot_of(4, NodeId{2});
const ViewMessage::Suspect some_suspect{NodeId{3}, Suspicion::command, true, {ViewAction::Kind::exchange, {}, {"ring", 2, 1, 0}}};
const ViewMessage::Promise some_promise{some_ballot, true, true, {5, 1}, ballot_of(3, NodeId{2}), some_view()};
const ViewMessage::Accept some_accept{some_ballot, some_view()};
const ViewMessage::State some_state{ViewStage::ready, {true, 17, 18, 19, 20}, 21};

/// One of each kind.
std::vector<ViewMessage> messages() {
    std::vector<ViewMessage> all;
    for (const ViewMessage::What& what :
         {ViewMessage::What(some_suspect), ViewMessage::What(ViewMessage::Prepare{some_ballot}), ViewMessage::What(some_promise),
          ViewMessage::What(ViewMessage::Nack{some_ballot}), ViewMessage::What(some_accept),
          ViewMessage::What(ViewMessage::Accepted{some_ballot}), ViewMessage::What(ViewMessage::View{some_ballot, some_view()}),
          ViewMessage::What(some_state), ViewMessage::What(ViewMessage::Join{{5, 1}})}) {
        EXPECT_EQ(what.index(), all.size());
        all.push_back(with(what));
        if (all.back().is<ViewMessage::View>()) all.back().view = some_view().number;
    }
    EXPECT_EQ(all.size(), std::variant_size_v<ViewMessage::What>);
    return all;
}

TEST(ViewMessages, ComeBackAsTheyWere) {
    for (const ViewMessage& said : messages()) {
        const std::vector<std::byte> bytes = view_message_write(said);
        ViewMessage read;
        ASSERT_TRUE(view_message_parse(bytes, &read)) << said.what.index();
        EXPECT_EQ(view_message_write(read), bytes);
        EXPECT_TRUE(read == said) << said.what.index();
    }
}

// Of a member that has not got the job's initial values yet.
TEST(ViewMessages, InitialValuesComeBack) {
    const ViewMessage said = with(ViewMessage::State{ViewStage::ready, {.digest = 18, .initial = true}, 21});
    ViewMessage read;
    ASSERT_TRUE(view_message_parse(view_message_write(said), &read));
    EXPECT_TRUE(read == said);
}

TEST(ViewMessages, AreRefusedCutOrWithMoreAtTheEnd) {
    for (const ViewMessage& said : messages()) {
        std::vector<std::byte> bytes = view_message_write(said);
        ViewMessage read;
        for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(view_message_parse(std::span(bytes).first(size), &read)) << size;
        bytes.push_back(std::byte{0});
        EXPECT_FALSE(view_message_parse(bytes, &read));
    }
}

bool refused(const ViewMessage& message) {
    ViewMessage read;
    return !view_message_parse(view_message_write(message), &read);
}

/// Whether a message is refused in which `change` has changed what is said.
template <typename One, typename Change>
bool refused(One what, Change change) {
    EXPECT_FALSE(refused(with(what)));
    change(what);
    return refused(with(what));
}

TEST(ViewMessages, AreRefusedWithFieldsOutOfRange) {
    using ViewOf = ViewMessage::Accept;
    EXPECT_TRUE(refused({.from = NodeId{nodes_max}, .incarnation = 1, .view = 1, .what = ViewMessage::Join{}}));
    EXPECT_TRUE(refused({.from = NodeId{2}, .incarnation = 0, .view = 1, .what = ViewMessage::Join{}}));
    EXPECT_TRUE(refused(ViewMessage::Prepare{some_ballot}, [](auto& it) { it.ballot = 0; }));
    EXPECT_TRUE(refused(ViewMessage::Accepted{some_ballot}, [](auto& it) { it.ballot = 0; }));
    EXPECT_FALSE(refused(ViewMessage::Nack{some_ballot}, [](auto& it) { it.promised = 0; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.ballot = 0; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.members.clear(); }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.members[1].node = NodeId{0}; })) << "a node twice";
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.members[1].incarnation = 0; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.number = 0; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.deadline_us = 0; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.exchange.name = "Ring"; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.exchange.name = ""; }));
    EXPECT_TRUE(refused(some_accept, [](ViewOf& it) { it.value.exchange.m = 0; }));
    EXPECT_TRUE(refused(with(ViewMessage::View{some_ballot, some_view()}))) << "the sender knows an older one";
    EXPECT_TRUE(refused(some_promise, [](auto& it) { it.ballot = 0; }));
    EXPECT_TRUE(refused(some_promise, [](auto& it) { it.accepted = it.ballot; }));
    EXPECT_TRUE(refused(some_promise, [](auto& it) { it.reach.resize(nodes_max / 64 + 1); }));
    EXPECT_TRUE(refused(some_suspect, [](auto& it) { it.why = Suspicion::none; }));
    EXPECT_TRUE(refused(some_suspect, [](auto& it) { it.action = {}; }));
    EXPECT_TRUE(refused(some_state, [](auto& it) { it.state.applied = UINT64_C(1) << 32; }));
    EXPECT_TRUE(refused(some_state, [](auto& it) { it.state = {.applied = 1, .initial = true}; }));
}

// Bytes 1, 2 and 12 of a message are its kind, its flags and the first of its ballot.
TEST(ViewMessages, AreRefusedWithAKindAFlagOrABallotThatTheyDoNotHave) {
    ViewMessage read;
    std::vector<std::byte> bytes = view_message_write(with(ViewMessage::Prepare{some_ballot}));
    for (const uint8_t kind : {0, 10, 255}) {
        bytes[1] = std::byte{kind};
        EXPECT_FALSE(view_message_parse(bytes, &read)) << static_cast<int>(kind);
    }
    for (const ViewMessage& said : messages()) {
        bytes = view_message_write(said);
        ASSERT_TRUE(view_message_parse(bytes, &read));
        bytes[2] = std::byte{4};
        EXPECT_FALSE(view_message_parse(bytes, &read)) << said.what.index();
        if (!said.is<ViewMessage::Suspect>() && !said.is<ViewMessage::State>() && !said.is<ViewMessage::Join>()) continue;
        bytes = view_message_write(said);
        bytes[12] = std::byte{1};
        EXPECT_FALSE(view_message_parse(bytes, &read)) << said.what.index();
    }
}

TEST(ViewMessages, OfTheLargestJobFit) {
    ViewMessage::Promise promise = some_promise;
    promise.reach.resize(nodes_max / 64);
    promise.value.members.clear();
    for (uint32_t each = 0; each < ranks_max; ++each) promise.value.members.push_back({NodeId{each}, 1, 1});
    const std::vector<std::byte> bytes = view_message_write(with(promise));
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
