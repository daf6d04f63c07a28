// A job that has ended is deleted with its folder; one that runs is not.
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

TEST(SystemDelete, WhatHasEndedAndNothingElse) {
    Cluster cluster(1);
    Node& a = cluster[0];
    const std::string data = make_data(cluster.folder + "/data.h5");
    cluster.up();
    const std::string id = a.submit(job_text(data, 1'000'000)).value("id", "");
    ASSERT_EQ(id.size(), 32u);
    const std::string folder = a.folder + "/state/jobs/" + id;
    Json answer = a.post("/v1/jobs/" + id + "/delete", Json());
    EXPECT_EQ(answer.value("code", ""), "conflict") << answer;
    EXPECT_TRUE(has(answer.value("error", ""), "has not ended here")) << answer;
    EXPECT_TRUE(std::filesystem::exists(folder));
    a.post("/v1/jobs/" + id + "/cancel", Json());
    EXPECT_EQ(a.ended(id).state, JobState::cancelled);
    // Its threads end after its state is known.
    ASSERT_TRUE(eventually([&] { return (answer = a.post("/v1/jobs/" + id + "/delete", Json())).contains("deleted"); })) << answer;
    EXPECT_FALSE(std::filesystem::exists(folder));
    EXPECT_EQ(a.job(id).value("code", ""), "invalid");
}

}   // namespace
}   // namespace gradcast
